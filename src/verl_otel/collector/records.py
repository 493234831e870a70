"""The typed records that stand between telemetry (OTLP) and trackers: sinks and queries see these, never protobuf.

Ids are lower-case hex strings (32 digits a trace, 16 a span, ``""`` none), times are Unix nanoseconds. Attribute and
body values are what OTLP carries: ``str``, ``bool``, ``int``, ``float``, ``bytes``, lists and dicts of them, ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from verl_otel import semconv

Value: TypeAlias = Any
Attributes: TypeAlias = Mapping[str, Value]


class Position(NamedTuple):
    """A place in the spool: ``offset`` bytes into segment number ``segment``. Ordered; the first is (0, 0)."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Resource:
    """The process that emitted a record. One instance is shared by all records of a request with equal attributes."""

    attributes: Attributes

    @property
    def run_id(self) -> str:
        return str(self.attributes.get(semconv.Resource.RUN_ID, ""))

    @property
    def attempt(self) -> int:
        return int(self.attributes.get(semconv.Resource.ATTEMPT, 1) or 1)

    @property
    def project(self) -> str:
        return str(self.attributes.get(semconv.Resource.PROJECT, ""))

    @property
    def experiment(self) -> str:
        return str(self.attributes.get(semconv.Resource.EXPERIMENT, ""))


@dataclass(frozen=True, slots=True)
class Link:
    trace_id: str
    span_id: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    time_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. ``status`` is ``unset``, ``ok`` or ``error``; ``kind`` is OTLP's number."""

    resource: Resource
    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    status: str = "unset"
    status_message: str = ""
    kind: int = 1
    events: Sequence[SpanEvent] = ()
    links: Sequence[Link] = ()
    scope: str = ""

    @property
    def type(self) -> str:
        """``verl.span.type`` (see ``semconv.SpanType``), ``""`` for spans that are not ours."""
        return str(self.attributes.get(semconv.SPAN_TYPE, ""))


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An OTLP log record; ``name`` is its ``event_name`` (``""`` for a plain log line)."""

    resource: Resource
    name: str
    time_ns: int
    attributes: Attributes
    body: Value = None
    trace_id: str = ""
    span_id: str = ""
    severity: int = 0
    scope: str = ""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One data point of an OTLP metric. ``kind`` is ``gauge``, ``sum`` or ``histogram``.

    A gauge or sum has ``value``; a histogram has ``count``, ``sum``, ``min``, ``max``, ``bounds`` (n) and ``buckets``
    (n + 1). ``exemplars`` are ``(value, time_ns, trace_id, span_id)``.
    """

    resource: Resource
    name: str
    kind: str
    time_ns: int
    attributes: Attributes
    unit: str = ""
    description: str = ""
    start_ns: int = 0
    value: float | None = None
    count: int | None = None
    sum: float | None = None
    min: float | None = None
    max: float | None = None
    bounds: Sequence[float] = ()
    buckets: Sequence[int] = ()
    exemplars: Sequence[tuple[float, int, str, str]] = ()
    monotonic: bool = False
    temporality: int = 0
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """What lay between two places of the spool, decoded. ``raw`` are the OTLP requests as ``(signal, bytes)``.

    ``signal`` is ``traces``, ``metrics`` or ``logs``. A worker decodes only for sinks that ask for records.
    """

    start: Position
    end: Position
    spans: Sequence[SpanRecord] = ()
    events: Sequence[EventRecord] = ()
    metrics: Sequence[MetricPoint] = ()
    raw: Sequence[tuple[str, bytes]] = ()

    @property
    def items(self) -> int:
        return len(self.spans) + len(self.events) + len(self.metrics)
