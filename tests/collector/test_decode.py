"""Records carry every field of what the OTel SDK encodes; nothing but ``Undecodable`` comes of other bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from verl_otel.collector import decode
from verl_otel.collector.pipeline.batches import Batches
from verl_otel.collector.records import Position
from verl_otel.collector.spool import SpoolReader, SpoolWriter

# What protobuf strings can hold
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
scalars = texts | st.booleans() | integers | floats
keys = texts.filter(bool)
attributes = st.dictionaries(keys, scalars | st.lists(texts, max_size=3) | st.lists(integers, max_size=3), max_size=5)
times = st.integers(1, 2**63 - 1)
trace_ids = st.integers(1, 2**128 - 1)
span_ids = st.integers(1, 2**64 - 1)
bodies = st.recursive(
    st.none() | scalars | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def listed(given_attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The SDK keeps sequences as tuples."""
    return {key: list(value) if isinstance(value, (list, tuple)) else value for key, value in given_attributes.items()}


def made_span(name: str, resource: dict[str, Any], given_attributes: dict[str, Any], **more: Any) -> ReadableSpan:
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource(resource))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    span = provider.get_tracer("scope").start_span(
        name, attributes=given_attributes, kind=more["kind"], links=more["links"], start_time=more["start"]
    )
    for event_name, event_attributes, when in more["events"]:
        span.add_event(event_name, event_attributes, when)
    span.set_status(more["status"])
    span.end(more["end"])
    (finished,) = memory.get_finished_spans()
    return finished


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_span_arrives_whole(data: st.DataObject) -> None:
    name, resource, given_attributes = data.draw(texts), data.draw(attributes), data.draw(attributes)
    start, end = data.draw(times), data.draw(times)
    kind = data.draw(st.sampled_from(SpanKind))
    status = data.draw(
        st.sampled_from([Status(), Status(StatusCode.OK), Status(StatusCode.ERROR, "bad"), Status(StatusCode.ERROR)])
    )
    linked = data.draw(st.lists(st.tuples(trace_ids, span_ids, attributes), max_size=2))
    events = data.draw(st.lists(st.tuples(texts, attributes, times), max_size=2))
    links = [Link(SpanContext(trace, span, True, TraceFlags(1)), attrs) for trace, span, attrs in linked]
    span = made_span(
        name, resource, given_attributes, kind=kind, links=links, start=start, events=events, status=status, end=end
    )
    (record,) = decode.spans(encode_spans([span]).SerializeToString())
    assert dict(record.resource.attributes) == listed(resource)
    context = span.get_span_context()
    assert context is not None
    assert (record.trace_id, record.span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert record.parent_span_id == ""
    assert (record.name, record.start_ns, record.end_ns, record.scope) == (name, start, end, "scope")
    assert record.attributes == listed(given_attributes)
    assert (record.status, record.status_message) == (status.status_code.name.lower(), status.description or "")
    # OTLP counts from "unspecified"
    assert record.kind == kind.value + 1
    assert [(link.trace_id, link.span_id, link.attributes) for link in record.links] == [
        (f"{trace:032x}", f"{other:016x}", listed(attrs)) for trace, other, attrs in linked
    ]
    assert [(event.name, event.attributes, event.time_ns) for event in record.events] == [
        (event_name, listed(attrs), when) for event_name, attrs, when in events
    ]


def test_a_child_names_its_parent() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("scope")
    with tracer.start_as_current_span("parent"), tracer.start_as_current_span("child"):
        pass
    child, parent = decode.spans(encode_spans(memory.get_finished_spans()).SerializeToString())
    assert (child.parent_span_id, child.trace_id) == (parent.span_id, parent.trace_id)
    assert child.resource is parent.resource


def put(any_value: AnyValue, value: Any) -> None:
    """``value`` into OTLP's form, as OTLP says it and not as our decoder does."""
    if value is None:
        return
    if isinstance(value, list):
        any_value.array_value.SetInParent()
        for item in value:
            put(any_value.array_value.values.add(), item)
    elif isinstance(value, dict):
        any_value.kvlist_value.SetInParent()
        for key, item in value.items():
            put(any_value.kvlist_value.values.add(key=key).value, item)
    else:
        kinds = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value", bytes: "bytes_value"}
        setattr(any_value, kinds[type(value)], value)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_event_arrives_whole(data: st.DataObject) -> None:
    body, name, scope = data.draw(bodies), data.draw(texts), data.draw(texts)
    resource, given_attributes = data.draw(attributes), data.draw(attributes)
    when, seen = data.draw(st.just(0) | times), data.draw(times)
    trace, span, severity = data.draw(trace_ids), data.draw(span_ids), data.draw(st.integers(0, 24))
    request = ExportLogsServiceRequest()
    block = request.resource_logs.add()
    for key, value in resource.items():
        put(block.resource.attributes.add(key=key).value, value)
    logs = block.scope_logs.add()
    logs.scope.name = scope
    record = logs.log_records.add(time_unix_nano=when, observed_time_unix_nano=seen, severity_number=severity)
    record.event_name, record.trace_id, record.span_id = name, trace.to_bytes(16, "big"), span.to_bytes(8, "big")
    for key, value in given_attributes.items():
        put(record.attributes.add(key=key).value, value)
    put(record.body, body)
    (event,) = decode.events(request.SerializeToString())
    assert (event.name, event.body, event.scope) == (name or str(given_attributes.get("event.name", "")), body, scope)
    assert (event.attributes, dict(event.resource.attributes)) == (given_attributes, resource)
    assert (event.time_ns, event.severity) == (when or seen, severity)
    assert (event.trace_id, event.span_id) == (f"{trace:032x}", f"{span:016x}")


def test_metrics_arrive_whole() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], Resource({"rl.run.id": "r"})).get_meter("scope")
    meter.create_counter("sum", "tokens", "how many").add(3, {"a": 1})
    meter.create_up_down_counter("updown").add(-2)
    meter.create_gauge("gauge").set(-1.5)
    histogram = meter.create_histogram("histogram", explicit_bucket_boundaries_advisory=[1.0, 2.0])
    for value in (0.5, 1.5, 99):
        histogram.record(value, {"b": "x"})
    points = {
        point.name: point for point in decode.metrics(encode_metrics(reader.get_metrics_data()).SerializeToString())
    }
    total = points["sum"]
    assert (total.kind, total.value, total.unit, total.description) == ("sum", 3.0, "tokens", "how many")
    assert (total.monotonic, total.temporality, total.attributes, total.scope) == (True, 2, {"a": 1}, "scope")
    assert total.resource.run_id == "r"
    assert 0 < total.start_ns <= total.time_ns
    assert (points["updown"].value, points["updown"].monotonic) == (-2.0, False)
    assert (points["gauge"].kind, points["gauge"].value, points["gauge"].temporality) == ("gauge", -1.5, 0)
    spread = points["histogram"]
    assert (spread.kind, spread.count, spread.sum, spread.min, spread.max) == ("histogram", 3, 101.0, 0.5, 99.0)
    assert (spread.bounds, spread.buckets, spread.value) == ([1.0, 2.0], [1, 1, 1], None)
    assert spread.attributes == {"b": "x"}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(decode.REQUESTS)), st.data())
def test_damaged_requests_decode_or_are_undecodable(signal: str, data: st.DataObject) -> None:
    """Random bytes are seldom near to a request; these are one with some bytes changed."""
    good = bytearray(WHOLE[signal])
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=6)):
        good[place] = byte
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    try:
        message = decode.parse(signal, cut)
        decode.count(signal, message)
        {"traces": decode.spans, "logs": decode.events, "metrics": decode.metrics}[signal](cut)
    except decode.Undecodable:
        pass


def whole_requests() -> dict[str, bytes]:
    span = made_span(
        "name", {"rl.run.id": "r"}, {"a": [1, 2], "b": "text"},
        kind=SpanKind.CLIENT, links=[Link(SpanContext(1, 2, True))], start=1, end=2,
        events=[("event", {"c": 1.5}, 3)], status=Status(StatusCode.ERROR, "bad"),
    )  # fmt: skip
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("scope")
    meter.create_counter("sum").add(3, {"a": 1})
    meter.create_histogram("histogram").record(1.5)
    logs = ExportLogsServiceRequest()
    record = logs.resource_logs.add().scope_logs.add().log_records.add(event_name="e", time_unix_nano=5)
    put(record.body, {"deep": [{"er": [1, "x", None, b"y"]}]})
    return {
        "traces": encode_spans([span]).SerializeToString(),
        "metrics": encode_metrics(reader.get_metrics_data()).SerializeToString(),
        "logs": logs.SerializeToString(),
    }


WHOLE = whole_requests()


def test_points_of_kinds_that_have_no_record_are_counted_and_not_said_to_be_delivered(tmp_path: Path) -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="gauge").gauge.data_points.add(as_int=1)
    for _ in range(2):
        metrics.add(name="exponential").exponential_histogram.data_points.add(count=1)
    metrics.add(name="summary").summary.data_points.add(count=1)
    data = request.SerializeToString()
    assert decode.count("metrics", request) == 4
    writer = SpoolWriter(tmp_path)
    writer.append("metrics", data, 4).result(10)
    writer.close()
    load = Batches(SpoolReader(tmp_path, Position(0, 0)), frozenset({"metrics"}), {"metrics": ()}).next()
    assert load is not None
    assert [point.name for point in load.batch.metrics] == ["gauge"]
    assert (load.items, load.points_skipped) == ({"metrics": 1}, 3)
