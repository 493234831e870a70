"""OTLP requests, as bytes, to records. Parsed once and walked by hand: ``MessageToDict`` costs five times as much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from verl_otel.collector.records import EventRecord, Link, MetricPoint, Resource, SpanEvent, SpanRecord

REQUESTS: dict[str, Any] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
_STATUS = ("unset", "ok", "error")
# Names that events had in attributes before OTLP gave log records an ``event_name``
_EVENT_NAME = "event.name"
_MAX_TEXT = 500


class Undecodable(ValueError):
    """Bytes that are no OTLP request of the signal."""

    def __init__(self, text: str) -> None:
        # It goes back to the sender and may quote what that sent: megabytes, or halves of a character.
        super().__init__(text[:_MAX_TEXT].encode("utf-8", "replace").decode())


def parse(signal: str, data: bytes) -> Any:
    """The request message of ``signal`` (``traces``, ``metrics`` or ``logs``); raises ``Undecodable``."""
    try:
        return REQUESTS[signal].FromString(data)
    except Exception as error:
        raise Undecodable(f"not an OTLP {signal} request: {error}") from None


def count(signal: str, message: Any) -> int:
    """How many spans, data points or log records a request holds."""
    if signal == "traces":
        return sum(len(scope.spans) for block in message.resource_spans for scope in block.scope_spans)
    if signal == "logs":
        return sum(len(scope.log_records) for block in message.resource_logs for scope in block.scope_logs)
    return sum(
        len(getattr(metric, metric.WhichOneof("data")).data_points) if metric.WhichOneof("data") else 0
        for block in message.resource_metrics
        for scope in block.scope_metrics
        for metric in scope.metrics
    )


def spans(data: bytes) -> list[SpanRecord]:
    """The spans of a traces request; raises ``Undecodable``."""
    return list(_spans(parse("traces", data)))


def events(data: bytes) -> list[EventRecord]:
    """The log records of a logs request; raises ``Undecodable``."""
    return list(_events(parse("logs", data)))


def metrics(data: bytes) -> list[MetricPoint]:
    """The data points of a metrics request; raises ``Undecodable``."""
    return list(_metrics(parse("metrics", data)))


def value(any_value: Any) -> Any:
    """A Python value for OTLP's ``AnyValue``."""
    kind = any_value.WhichOneof("value")
    if kind is None:
        return None
    inner = getattr(any_value, kind)
    if kind == "array_value":
        return [value(item) for item in inner.values]
    if kind == "kvlist_value":
        return {item.key: value(item.value) for item in inner.values}
    return inner


def attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    """A dict of OTLP key-value pairs; the last of equal keys wins."""
    return {pair.key: value(pair.value) for pair in pairs}


def _spans(message: Any) -> Iterator[SpanRecord]:
    for block in message.resource_spans:
        resource = Resource(attributes(block.resource.attributes))
        for scope in block.scope_spans:
            scope_name = scope.scope.name
            for span in scope.spans:
                yield SpanRecord(
                    resource=resource,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_span_id=span.parent_span_id.hex(),
                    name=span.name,
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=attributes(span.attributes),
                    status=_STATUS[span.status.code] if 0 <= span.status.code < 3 else "unset",
                    status_message=span.status.message,
                    kind=span.kind,
                    events=[
                        SpanEvent(event.name, event.time_unix_nano, attributes(event.attributes))
                        for event in span.events
                    ],
                    links=[
                        Link(link.trace_id.hex(), link.span_id.hex(), attributes(link.attributes))
                        for link in span.links
                    ],
                    scope=scope_name,
                )


def _events(message: Any) -> Iterator[EventRecord]:
    for block in message.resource_logs:
        resource = Resource(attributes(block.resource.attributes))
        for scope in block.scope_logs:
            for record in scope.log_records:
                attrs = attributes(record.attributes)
                name = getattr(record, "event_name", "") or str(attrs.get(_EVENT_NAME, ""))
                yield EventRecord(
                    resource=resource,
                    name=name,
                    time_ns=record.time_unix_nano or record.observed_time_unix_nano,
                    attributes=attrs,
                    body=value(record.body),
                    trace_id=record.trace_id.hex(),
                    span_id=record.span_id.hex(),
                    severity=record.severity_number,
                    scope=scope.scope.name,
                )


def _metrics(message: Any) -> Iterator[MetricPoint]:
    for block in message.resource_metrics:
        resource = Resource(attributes(block.resource.attributes))
        for scope in block.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                # Summaries and exponential histograms: verl-otel makes none, and no sink of ours takes them.
                if kind in ("gauge", "sum", "histogram"):
                    yield from _points(resource, scope.scope.name, metric, kind)


def _points(resource: Resource, scope: str, metric: Any, kind: str) -> Iterator[MetricPoint]:
    data = getattr(metric, kind)
    for point in data.data_points:
        common: dict[str, Any] = {
            "resource": resource,
            "name": metric.name,
            "kind": kind,
            "time_ns": point.time_unix_nano,
            "attributes": attributes(point.attributes),
            "unit": metric.unit,
            "description": metric.description,
            "start_ns": point.start_time_unix_nano,
            "exemplars": _exemplars(point.exemplars),
            "scope": scope,
        }
        if kind == "histogram":
            yield MetricPoint(
                **common,
                count=point.count,
                sum=point.sum if point.HasField("sum") else None,
                min=point.min if point.HasField("min") else None,
                max=point.max if point.HasField("max") else None,
                bounds=list(point.explicit_bounds),
                buckets=list(point.bucket_counts),
                temporality=data.aggregation_temporality,
            )
        else:
            yield MetricPoint(
                **common,
                value=_number(point),
                monotonic=kind == "sum" and data.is_monotonic,
                temporality=data.aggregation_temporality if kind == "sum" else 0,
            )


def _number(point: Any) -> float | None:
    kind = point.WhichOneof("value")
    return None if kind is None else float(getattr(point, kind))


def _exemplars(exemplars: Iterable[Any]) -> Sequence[tuple[float, int, str, str]]:
    return [(_number(item) or 0.0, item.time_unix_nano, item.trace_id.hex(), item.span_id.hex()) for item in exemplars]
