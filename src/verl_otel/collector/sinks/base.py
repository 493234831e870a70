"""What a sink is: it turns records into one destination's calls. Retry, order, cursors and counters are the worker's.

A sink lives in a process of its own (see ``pipeline``), gets batches in spool order and says how far its
destination has them. It may raise ``Retry`` (the same batch comes again after a pause, for ever by default) or
``Reject`` (these records will never be taken: counted, set aside, the rest goes on). Any other exception counts as
``Retry``: nothing is lost because of a bug.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from verl_otel.collector.records import Batch, Position


class Retry(Exception):
    """The destination cannot take this now. ``after_s``: the pause it asked for, in seconds (else backoff decides)."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Reject(Exception):
    """The destination will never take this; ``count`` records are set aside.

    ``requests`` are the OTLP requests of the batch that were refused, where a sink knows them (it wants ``raw``): only
    they are kept as dead letters, else the whole batch is.
    """

    def __init__(self, message: str, count: int = 1, requests: Sequence[tuple[str, bytes]] = ()) -> None:
        super().__init__(message)
        self.count = count
        self.requests = requests


class ConfigError(ValueError):
    """A user's mistake in the config: ``path`` says where (``exporters.mlflow.uri``), the message what to do instead."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


@dataclass(slots=True)
class Counters:
    """What a sink counts beyond what the worker counts; the names become metrics of the collector and lines of doctor."""

    values: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int = 1) -> None:
        self.values[name] = self.values.get(name, 0) + count


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What the worker hands to a sink: its config name, ``VERL_OTEL_HOME``, a folder for its own state, counters."""

    name: str
    home: Path
    state_dir: Path
    counters: Counters


class Sink(Protocol):
    """One destination. All calls come from one thread of one process.

    ``wants`` names what the sink reads of a batch: any of ``spans``, ``events``, ``metrics`` (decoded records) and
    ``raw`` (undecoded OTLP requests).
    """

    wants: frozenset[str]

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Validate ``config`` (the YAML mapping at ``path``), fill in defaults; raises ``ConfigError``."""
        ...

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        """``config`` has passed ``check``."""
        ...

    def start(self) -> Position | None:
        """Make ready. A place returned here overrides the worker's cursor: the destination knows better how far it is."""
        ...

    def deliver(self, batch: Batch) -> None:
        """Take ``batch``, which follows the one before it (or repeats what came after ``committed``, on a restart)."""
        ...

    def tick(self) -> None:
        """Called when the spool has nothing new, at least once a second: a place for flushing by age."""
        ...

    def committed(self) -> Position | None:
        """Up to where everything is safe at the destination (``None``: up to all that was delivered)."""
        ...

    def close(self, drain: bool) -> None:
        """Finish: with ``drain``, everything delivered must be safe at the destination when this returns."""
        ...
