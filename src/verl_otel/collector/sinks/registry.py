"""Finds sinks by their entry points, ours and those of other packages."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from verl_otel.collector.sinks.base import Sink

GROUP = "verl_otel.sinks"


@cache
def _found() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def names() -> list[str]:
    """The names of all sinks that are installed."""
    return sorted(_found())


def load(name: str) -> type[Sink]:
    """A sink's class; raises ``ImportError`` when what it needs is not installed."""
    loaded: type[Sink] = _found()[name].load()
    return loaded
