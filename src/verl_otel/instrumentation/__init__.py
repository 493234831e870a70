"""verl's hooks. ``install`` only registers import hooks; a hook's code is loaded when its verl module is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from verl_otel.instrumentation import patch
from verl_otel.instrumentation.table import HOOKS, Hook

_installed: dict[str, str] = {}
_modules: set[str] = set()


def install() -> None:
    """Hook verl's modules: those already imported now, the others when they are imported. Idempotent, never raises."""
    from verl_otel.telemetry.settings import disabled

    if disabled():
        return
    for name in {hook.module for hook in HOOKS}:
        if name not in _modules:
            _modules.add(name)
            wrapt.register_post_import_hook(_on_import, name)


def status() -> dict[str, str]:
    """For each hook whose module is imported here: ``on``, or why it is not."""
    return dict(_installed)


def install_in_main() -> None:
    """Apply the hooks of the module that runs as ``__main__``, which is never imported under its own name."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if main is not None and spec is not None and spec.name in _modules and spec.name not in sys.modules:
        _apply_all(main, spec.name)


def _on_import(module: ModuleType) -> None:
    _apply_all(module, module.__name__)


def _apply_all(module: ModuleType, name: str) -> None:
    from verl_otel.telemetry import guard
    from verl_otel.telemetry.settings import Settings

    with guard.guarded("instrumentation"):
        left_out = {item.strip() for item in Settings.from_env().disabled_hooks.split(",")}
        for hook in HOOKS:
            if hook.module == name and hook.path not in _installed:
                _installed[hook.path] = "disabled" if hook.feature in left_out else _apply(module, hook)


def _apply(module: ModuleType, hook: Hook) -> str:
    from verl_otel.telemetry import guard

    try:
        wrapper = _load(hook.wrapper)
        if hook.attribute:
            patch.wrap(module, hook.attribute, wrapper)
        else:
            wrapper(module)
    except AttributeError:
        guard.count("missing.hooks")
        guard.warn_once(
            hook.feature,
            f"{hook.path} is not there in this verl: {hook.feature} ({hook.seen}) will not be seen",
        )
        return "missing"
    except Exception as error:
        guard.report(hook.feature, error)
        return f"failed: {error}"
    return "on"


def _load(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(f"verl_otel.instrumentation.{module}"), name)
    return loaded


def __getattr__(name: str) -> Any:
    # ``opentelemetry-instrument`` loads the class from here; its base class costs imports that Ray workers do not need.
    if name == "VerlInstrumentor":
        from verl_otel.instrumentation.instrumentor import VerlInstrumentor

        return VerlInstrumentor
    raise AttributeError(name)


__all__ = ["VerlInstrumentor", "install", "install_in_main", "status"]
