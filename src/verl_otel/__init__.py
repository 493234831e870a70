"""OpenTelemetry for LLM reinforcement learning with verl.

For loops that are not verl's own::

    import verl_otel

    verl_otel.init(project="demo", experiment="first")
    with verl_otel.training_step(1), verl_otel.phase("gen"):
        with verl_otel.trajectory("my_agent", inputs="2+2?") as trajectory:
            ...
    verl_otel.shutdown()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from verl_otel.telemetry.api import (
        init,
        phase,
        reward,
        shutdown,
        tool_call,
        track_metric,
        training_step,
        trajectory,
        turn,
    )

__all__ = [
    "__version__",
    "init",
    "phase",
    "reward",
    "shutdown",
    "tool_call",
    "track_metric",
    "training_step",
    "trajectory",
    "turn",
]


def __getattr__(name: str) -> Any:
    # The SDK is imported with the first use of the API: importing verl_otel must cost training processes nothing.
    if name in __all__:
        value = getattr(importlib.import_module("verl_otel.telemetry.api"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
