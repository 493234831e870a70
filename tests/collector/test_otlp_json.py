"""OTLP's JSON form means the same as its protobuf form."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from verl_otel.collector import decode
from verl_otel.collector.receivers import otlp_json


def as_otlp_json(message: Any) -> bytes:
    """protobuf's own JSON with the ids in hex, enums as numbers, and a key that no one knows."""

    def with_hex_ids(node: Any) -> Any:
        if isinstance(node, list):
            return [with_hex_ids(item) for item in node]
        if not isinstance(node, dict):
            return node
        ids = {"traceId", "spanId", "parentSpanId"}
        return {key: base64.b64decode(item).hex() if key in ids else with_hex_ids(item) for key, item in node.items()}

    node = json_format.MessageToDict(message, use_integers_for_enums=True)
    return json.dumps({**with_hex_ids(node), "unknown": [1]}).encode()


def test_ids_of_spans_parents_and_links_are_hex() -> None:
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add(name="s", kind=3, start_time_unix_nano=2**62)
    span.trace_id, span.span_id, span.parent_span_id = b"\xa1" * 16, b"\xb2" * 8, b"\xc3" * 8
    span.links.add(trace_id=b"\xd4" * 16, span_id=b"\xe5" * 8)
    # An attribute may be called like an id, and is none.
    span.attributes.add(key="traceId").value.string_value = "not hex"
    span.attributes.add(key="bytes").value.bytes_value = b"\0\xff"
    data = otlp_json.to_protobuf("traces", as_otlp_json(message))
    assert ExportTraceServiceRequest.FromString(data) == message
    (record,) = decode.spans(data)
    assert (record.trace_id, record.parent_span_id, record.links[0].span_id) == ("a1" * 16, "c3" * 8, "e5" * 8)


def test_ids_of_exemplars_are_hex_and_odd_numbers_survive() -> None:
    message = ExportMetricsServiceRequest()
    metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    point = metric.gauge.data_points.add(as_double=float("inf"))
    point.exemplars.add(as_int=2**60, trace_id=b"\1" * 16, span_id=b"\2" * 8, time_unix_nano=9)
    data = otlp_json.to_protobuf("metrics", as_otlp_json(message))
    (record,) = decode.metrics(data)
    assert record.value == float("inf")
    assert record.exemplars == [(float(2**60), 9, "01" * 16, "02" * 8)]


def test_names_in_snake_case_are_understood_too() -> None:
    text = {
        "resource_spans": [{"scope_spans": [{"spans": [{"trace_id": "ab" * 16, "span_id": "cd" * 8, "name": "s"}]}]}]
    }
    (record,) = decode.spans(otlp_json.to_protobuf("traces", json.dumps(text).encode()))
    assert (record.trace_id, record.span_id) == ("ab" * 16, "cd" * 8)
