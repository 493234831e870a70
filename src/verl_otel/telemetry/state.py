"""This process's telemetry: which role it plays, and the SDK, made when the first thing is emitted.

Making it late lets the role and rank be known by then, and keeps processes that never emit free of threads.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

from verl_otel import semconv
from verl_otel.telemetry import guard, run
from verl_otel.telemetry.background import Background
from verl_otel.telemetry.sdk import Sdk
from verl_otel.telemetry.settings import SettingError, Settings, disabled

background = Background()

_lock = threading.Lock()
_sdk: Sdk | None = None
_off: bool | None = None
_role: dict[str, Any] = {}


def set_role(role: str, rank: int | None = None, world_size: int | None = None) -> None:
    """Say what this process is; the first word counts (a rank stays an actor although it also serves as reference)."""
    _role.setdefault(semconv.Resource.ROLE, role)
    if rank is not None:
        _role.setdefault(semconv.Resource.RANK, rank)
    if world_size is not None:
        _role.setdefault(semconv.Resource.WORLD_SIZE, world_size)


def set_resource(**values: Any) -> None:
    """Add to the resource; only before the first thing is emitted."""
    _role.update({name: value for name, value in values.items() if value})


def sdk() -> Sdk | None:
    """The SDK, or ``None`` when telemetry is off here: disabled, or the process is not part of a run."""
    if _sdk is not None or _off:
        return _sdk
    return _make()


def _make() -> Sdk | None:
    global _sdk, _off
    with _lock:
        if _sdk is None and _off is None:
            if disabled():
                _off = True
                return None
            try:
                settings = Settings.from_env()
            except SettingError as error:
                guard.warn_once("settings", f"{error}; telemetry is off in this process")
                _off = True
                return None
            current = run.from_settings(settings)
            if current is None:
                return None
            with guard.guarded("sdk"):
                _sdk = Sdk(settings, current, _role)
                atexit.register(shutdown)
            _off = _sdk is None
    return _sdk


def flush_soon() -> None:
    """Send what is there now, in the background, after the jobs that are queued."""
    current = _sdk
    if current is not None:
        background.submit(current.flush_soon)


def flush(timeout_s: float) -> bool:
    """Finish queued jobs and send everything, waiting at most ``timeout_s`` seconds."""
    current = _sdk
    if current is None:
        return True
    drained = background.drain(timeout_s)
    return current.flush(timeout_s) and drained


def shutdown(timeout_s: float | None = None) -> None:
    """End telemetry in this process: send what is left, within ``timeout_s`` seconds (the setting, by default)."""
    global _sdk, _off
    with _lock:
        current, _sdk, _off = _sdk, None, None
    if current is not None:
        limit = current.settings.shutdown_timeout if timeout_s is None else timeout_s
        with guard.guarded("sdk"):
            background.drain(limit)
            current.close(limit)
