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
class Config:
    """Addresses are ``host:port``; ``None`` where a door is not wanted."""

    grpc_endpoint: str | None
    http_endpoint: str | None
    health_endpoint: str | None
    max_request_bytes: int
    spool_max_bytes: int
    shutdown_timeout: float
    exporters: Mapping[str, Exporter]
    processors: Mapping[str, Mapping[str, Any]]
    pipelines: Sequence[Pipeline]

    def signals_of(self, exporter: str) -> dict[str, Sequence[str]]:
        """What goes to an exporter: signal → names of the processors before it."""
        found: dict[str, Sequence[str]] = {}
        for pipeline in self.pipelines:
            if exporter in pipeline.exporters:
                found[pipeline.signal] = pipeline.processors
        return found
