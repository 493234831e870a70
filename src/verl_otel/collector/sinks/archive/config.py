"""The options of the sink ``archive``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from verl_otel.collector.sinks.base import ConfigError

_MIB: Final = 1024 * 1024
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

DEFAULTS: Final[dict[str, Any]] = {
    # Seconds that a row waits at most before readers see it (``5s``, ``500ms`` or a number).
    "flush_interval": 5.0,
    "flush_rows": 50_000,
    # Bytes in memory, about, at which rows are written whatever their age.
    "flush_bytes": 64 * _MIB,
    # The size that small files grow to by merging.
    "target_file_bytes": 128 * _MIB,
    "compaction": True,
}


def check(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """``config`` with defaults filled in and ``flush_interval`` in seconds; raises ``ConfigError``."""
    checked = dict(DEFAULTS)
    for key, value in (config or {}).items():
        where = f"{path}.{key}"
        if key not in DEFAULTS:
            near = difflib.get_close_matches(str(key), DEFAULTS, n=1)
            advice = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(DEFAULTS)}"
            raise ConfigError(where, f"unknown key; {advice}")
        if key == "flush_interval":
            checked[key] = _seconds(value, where)
        elif key == "compaction":
            if not isinstance(value, bool):
                raise ConfigError(where, f"must be true or false, not {value!r}")
            checked[key] = value
        else:
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ConfigError(where, f"must be a whole number above 0, not {value!r}")
            checked[key] = value
    return checked


def _seconds(value: object, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(where, f"must be a duration such as 5s or 500ms, not {value!r}")
    return float(match[1]) * _UNITS[match[2]]
