"""The sink's keys in YAML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_otel.collector.sinks.base import ConfigError

_KEYS = ("tracking_uri", "experiment", "trajectories_per_step", "steps", "timeout")


@dataclass(frozen=True, slots=True)
class MlflowConfig:
    """``tracking_uri`` empty: ``MLFLOW_TRACKING_URI``, else sqlite under the home; ``timeout`` in seconds per request."""

    tracking_uri: str = ""
    experiment: str = ""
    trajectories_per_step: int = 256
    steps: bool = True
    timeout: float = 30.0


def check(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Validate the mapping at ``path``; raises ``ConfigError``."""
    for key in config:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key), _KEYS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_KEYS)}"
            raise ConfigError(f"{path}.{key}", f"unknown key; {hint}")
    budget = config.get("trajectories_per_step", 256)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise ConfigError(f"{path}.trajectories_per_step", "must be a whole number of trajectories, 0 for none")
    if not isinstance(config.get("steps", True), bool):
        raise ConfigError(f"{path}.steps", "must be true or false")
    timeout = str(config.get("timeout", "30s")).removesuffix("s")
    if not timeout.replace(".", "", 1).isdigit():
        raise ConfigError(f"{path}.timeout", "is no time in seconds; write it as 30s")
    return {
        "tracking_uri": str(config.get("tracking_uri") or ""),
        "experiment": str(config.get("experiment") or ""),
        "trajectories_per_step": budget,
        "steps": config.get("steps", True),
        "timeout": float(timeout),
    }
