"""Records to rows: one tuple per record, in the order of ``collector.archive.columns``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from verl_otel import semconv
from verl_otel.collector.archive.columns import EVENT_PROMOTED, SPAN_PROMOTED
from verl_otel.collector.archive.encoding import to_text
from verl_otel.collector.archive.layout import UNKNOWN_RUN
from verl_otel.collector.records import EventRecord, MetricPoint, Resource, SpanRecord

Row = tuple[Any, ...]

_MAX: Final = 2**63 - 1


def _text(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    # OTLP text is UTF-8, but records made by hand may hold lone surrogates, which Parquet refuses.
    return text if text.isascii() else text.encode(errors="replace").decode()


def _int(value: object) -> int | None:
    # OTLP's times are unsigned: a nonsensical one must not stop the archive.
    return min(max(value, -_MAX - 1), _MAX) if isinstance(value, int) else None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _as_str(value: object) -> tuple[object, bool]:
    return (_text(value), True) if isinstance(value, str) else (_text(value), False)


def _as_int(value: object) -> tuple[object, bool]:
    if type(value) is int and -_MAX - 1 <= value <= _MAX:
        return value, True
    return None, False


def _as_float(value: object) -> tuple[object, bool]:
    if type(value) is float:
        return value, True
    return (float(value), False) if type(value) is int and abs(value) <= _MAX else (None, False)


_AS: Final[dict[str, Callable[[object], tuple[object, bool]]]] = {
    "str": _as_str,
    "int": _as_int,
    "float": _as_float,
}
_SPAN: Final = tuple((attribute, _AS[kind]) for attribute, kind in SPAN_PROMOTED.values())
_EVENT: Final = tuple((attribute, _AS[kind]) for attribute, kind in EVENT_PROMOTED.values())


def _promote(
    attributes: Mapping[str, Any], columns: tuple[tuple[str, Callable[[object], tuple[object, bool]]], ...]
) -> tuple[list[object], str]:
    rest = dict(attributes)
    values: list[object] = []
    for name, convert in columns:
        value = rest.get(name)
        if value is None:
            values.append(None)
            continue
        converted, exact = convert(value)
        values.append(converted)
        if exact:
            del rest[name]
    return values, _json(rest)


def _json(value: object) -> str:
    return _text(to_text(value))


class Rows:
    """Turns records into rows. A resource's part of a row is made once for all records that share the instance."""

    def __init__(self) -> None:
        self._resource: Resource | None = None
        self._head: Row = ()
        self._resource_json = ""

    def _use(self, resource: Resource) -> None:
        if resource is self._resource:
            return
        attributes = resource.attributes
        attempt = attributes.get(semconv.Resource.ATTEMPT, 1)
        try:
            attempt_number = int(attempt or 1)
        except (TypeError, ValueError):
            attempt_number = 1
        self._head = (
            _text(resource.run_id) or UNKNOWN_RUN,
            _int(attempt_number),
            _text(resource.project),
            _text(resource.experiment),
            _text(attributes.get(semconv.Resource.ROLE, "")),
            _as_int(attributes.get(semconv.Resource.RANK))[0],
        )
        self._resource_json = _json(dict(attributes))
        self._resource = resource

    def span(self, span: SpanRecord) -> Row:
        self._use(span.resource)
        promoted, attributes = _promote(span.attributes, _SPAN)
        return (
            *self._head,
            span.trace_id,
            span.span_id,
            span.parent_span_id,
            _text(span.name),
            span.kind,
            _int(span.start_ns),
            _int(span.end_ns),
            span.status,
            _text(span.status_message),
            *promoted,
            attributes,
            _json([asdict(event) for event in span.events]) if span.events else "[]",
            _json([asdict(link) for link in span.links]) if span.links else "[]",
            _text(span.scope),
            self._resource_json,
        )

    def event(self, event: EventRecord) -> Row:
        self._use(event.resource)
        promoted, attributes = _promote(event.attributes, _EVENT)
        return (
            *self._head,
            _text(event.name),
            _int(event.time_ns),
            event.trace_id,
            event.span_id,
            event.severity,
            *promoted,
            attributes,
            _json(event.body),
            _text(event.scope),
            self._resource_json,
        )

    def metric(self, point: MetricPoint) -> Row:
        self._use(point.resource)
        return (
            *self._head,
            _text(point.name),
            point.kind,
            _text(point.unit),
            _text(point.description),
            _int(point.start_ns),
            _int(point.time_ns),
            _float(point.value),
            _int(point.count),
            _float(point.sum),
            _float(point.min),
            _float(point.max),
            [float(bound) for bound in point.bounds],
            [_int(count) for count in point.buckets],
            point.monotonic,
            point.temporality,
            _json(dict(point.attributes)),
            _json([list(exemplar) for exemplar in point.exemplars]) if point.exemplars else "[]",
            _text(point.scope),
            self._resource_json,
        )
