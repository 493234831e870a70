"""verl's ``Tracking``: every scalar at its step, validation samples, and ``otel`` among the names of its loggers."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from verl_otel.instrumentation import driver
from verl_otel.telemetry import api, events, guard, state, steps
from verl_otel.telemetry.settings import PREFIX


def extend(module: ModuleType) -> None:
    """Let ``trainer.logger`` name ``otel``, and ``from verl.utils.tracking import track_metric`` work."""
    backends = module.Tracking.supported_backend
    if "otel" not in backends:
        backends.append("otel")
    if not hasattr(module, "track_metric"):
        module.track_metric = api.track_metric  # type: ignore[attr-defined]


def init(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A trainer whose entry point is not hooked starts its run here."""
    with guard.guarded("run"):
        config = kwargs.get("config", args[3] if len(args) > 3 else None)
        if not os.environ.get(PREFIX + "RUN_ID") or state.sdk() is None:
            driver.start(config or {})
    return wrapped(*args, **kwargs)


def log(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    with guard.guarded("metrics"):
        data = args[0] if args else kwargs["data"]
        step = args[1] if len(args) > 1 else kwargs["step"]
        scalars = events.metrics(data, int(step))
        if steps.current_step() == int(step):
            steps.end(scalars)
        state.flush_soon()
    return result


def generations(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    with guard.guarded("generations"):
        samples = args[1] if len(args) > 1 else kwargs["samples"]
        step = args[2] if len(args) > 2 else kwargs["step"]
        state.background.submit(events.generations, [tuple(sample) for sample in samples], int(step))
    return result
