"""The options of the sink ``archive``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verl_otel.collector.config.keys import Problems
from verl_otel.collector.sinks.base import ConfigError

_MIB: Final = 1 << 20

DEFAULTS: Final[dict[str, Any]] = {
    # Seconds that a row waits at most before readers see it.
    "flush_interval": 5.0,
    "flush_rows": 50_000,
    # Bytes in memory, about, at which rows are written whatever their age.
    "flush_bytes": 64 * _MIB,
    # The size that small files grow to by merging.
    "target_file_bytes": 128 * _MIB,
    "compaction": True,
}


def check(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """``config`` with defaults filled in, ``flush_interval`` in seconds, sizes in bytes; raises ``ConfigError``."""
    problems = Problems()
    given = problems.mapping(config, path, DEFAULTS)
    checked: dict[str, Any] = dict(DEFAULTS)
    checked["flush_interval"] = problems.duration(
        given.get("flush_interval"), f"{path}.flush_interval", DEFAULTS["flush_interval"]
    )
    for key in ("flush_rows", "flush_bytes", "target_file_bytes"):
        checked[key] = problems.size(given.get(key), f"{path}.{key}", DEFAULTS[key])
        if checked[key] <= 0:
            problems.add(f"{path}.{key}", "must be more than 0")
    if not isinstance(compaction := given.get("compaction", True), bool):
        problems.add(f"{path}.compaction", f"must be true or false, not {compaction!r}")
    checked["compaction"] = compaction
    if problems.lines:
        where, _, message = problems.lines[0].partition(": ")
        raise ConfigError(where, message)
    return checked
