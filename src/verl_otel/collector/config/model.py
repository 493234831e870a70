"""A checked configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Retry:
    """Seconds between tries of a batch; ``max_elapsed_time`` 0 means never to give up."""

    initial_interval: float = 1.0
    max_interval: float = 30.0
    max_elapsed_time: float = 0.0


@dataclass(frozen=True, slots=True)
class Exporter:
    """One sink. ``name`` is its key in the file (``mlflow`` or ``mlflow/second``), ``config`` what its check made of it."""

    name: str
    type: str
    config: Mapping[str, Any]
    retry: Retry = field(default_factory=Retry)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``signal`` is ``traces``, ``metrics`` or ``logs``."""

    name: str
    signal: str
    receivers: Sequence[str]
    processors: Sequence[str]
    exporters: Sequence[str]


@dataclass(frozen=True, slots=True)
class Listener:
    """A receiver's door: ``endpoint`` is ``host:port``, ``max_bytes`` the largest request."""

    endpoint: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Spool:
    """Bytes of all segments and of one; ``shutdown_timeout`` is how many seconds a stop waits for the sinks."""

    max_bytes: int
    segment_bytes: int
    shutdown_timeout: float


@dataclass(frozen=True, slots=True)
class Config:
    """``None`` where a door is not wanted. ``source`` is the YAML that this was made of, environment filled in."""

    grpc: Listener | None
    http: Listener | None
    health_endpoint: str | None
    spool: Spool
    log_level: str
    exporters: Mapping[str, Exporter]
    processors: Mapping[str, Mapping[str, Any]]
    pipelines: Sequence[Pipeline]
    source: Mapping[str, Any]

    @property
    def signals(self) -> frozenset[str]:
        """The signals that some exporter gets."""
        return frozenset(pipeline.signal for pipeline in self.pipelines)

    def processors_of(self, exporter: str) -> dict[str, Sequence[str]]:
        """What goes to an exporter: signal → names of the processors before it."""
        found: dict[str, Sequence[str]] = {}
        for pipeline in self.pipelines:
            if exporter in pipeline.exporters:
                found[pipeline.signal] = pipeline.processors
        return found
