from __future__ import annotations

import gzip
import json
import socket
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.collector.rig import Collector, post, request, span_ids


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with Collector(tmp_path_factory.mktemp("receivers") / "home") as started:
        yield started


@pytest.fixture
def url(collector: Collector) -> str:
    return collector.endpoint("http") + "/v1/traces"


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_the_stock_http_exporter_is_understood(collector: Collector, url: str, compression: Compression) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(url, compression=compression)))
    with provider.get_tracer("t").start_as_current_span("hello") as span:
        pass
    collector.wait_for()
    assert f"{span.get_span_context().span_id:016x}" in span_ids(collector.home)


def test_the_stock_grpc_exporter_is_understood(collector: Collector) -> None:
    exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
    provider = TracerProvider()
    exporter = exporters.OTLPSpanExporter(collector.endpoint("grpc"), insecure=True)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("hello") as span:
        pass
    collector.wait_for()
    assert f"{span.get_span_context().span_id:016x}" in span_ids(collector.home)


def export(collector: Collector, body: bytes) -> grpc.RpcError | None:
    with grpc.insecure_channel(collector.endpoint("grpc")) as channel:
        method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        try:
            channel.unary_unary(method)(body, timeout=20)
        except grpc.RpcError as error:
            return error
    return None


def test_grpc_takes_requests_and_refuses_what_is_none(collector: Collector) -> None:
    assert export(collector, request(0xABC)) is None
    error = export(collector, b"\xff\xff\xff")
    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    collector.wait_for()
    assert f"{0xABC:016x}" in span_ids(collector.home)


def test_json_with_hex_ids_is_understood(collector: Collector, url: str) -> None:
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "name": "json",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "kind": 1,
        "unknownField": True,
    }
    body = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [span]}]}]}
    status, headers, answer = post(url, json.dumps(body).encode(), "application/json")
    assert (status, json.loads(answer)) == (200, {})
    assert headers["Content-Type"].startswith("application/json")
    collector.wait_for()
    assert "b7ad6b7169203331" in span_ids(collector.home)


@pytest.mark.parametrize(
    ("body", "kind", "headers", "code"),
    [
        (b"\xff\xff\xff", "application/x-protobuf", {}, 400),
        (b"{not json", "application/json", {}, 400),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}', "application/json", {}, 400),
        (b"[" * 5_000, "application/json", {}, 400),
        (b"hello", "text/plain", {}, 415),
        (b"\x1f\x8b nonsense", "application/x-protobuf", {"Content_Encoding": "gzip"}, 400),
        (b"x", "application/x-protobuf", {"Content_Encoding": "zstd"}, 415),
        (b"x" * (2 << 20), "application/x-protobuf", {}, 413),
        (gzip.compress(b"\0" * (200 << 20)), "application/x-protobuf", {"Content_Encoding": "gzip"}, 413),
    ],
    ids=["bytes", "json", "ids", "nesting", "type", "gzip", "encoding", "large", "bomb"],
)
def test_what_is_no_request_gets_a_clear_answer(
    collector: Collector, url: str, body: bytes, kind: str, headers: dict[str, str], code: int
) -> None:
    before = collector.status()["accepted"].get("traces", 0)
    status, answered, answer = post(url, body, kind, **headers)
    assert status == code
    if kind == "application/json":
        assert json.loads(answer)["message"]
    else:
        assert answered["Content-Type"] == "application/x-protobuf"
        assert Status.FromString(answer).message
    assert collector.status()["accepted"].get("traces", 0) == before


def test_an_empty_request_is_fine_and_kept_nowhere(collector: Collector, url: str) -> None:
    before = collector.status()["spool_bytes"]
    assert post(url, b"")[0] == 200
    assert collector.status()["spool_bytes"] == before


def test_half_requests_and_silent_clients_disturb_nobody(collector: Collector, url: str) -> None:
    host, port = url.removeprefix("http://").split("/")[0].split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    for connection in silent[:10]:
        connection.sendall(b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    for connection in silent[:5]:
        connection.close()
    assert post(url, request(0xDEF))[0] == 200
    for connection in silent:
        connection.close()


def test_grpc_senders_that_give_up_stop_nobody(collector: Collector) -> None:
    method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    with grpc.insecure_channel(collector.endpoint("grpc")) as channel:
        calls = [channel.unary_unary(method).future(request(number), timeout=20) for number in range(0xE00, 0xE60)]
        for call in calls:
            call.cancel()
    assert export(collector, request(0xE60)) is None
    collector.wait_for()
    assert f"{0xE60:016x}" in span_ids(collector.home)


def test_a_packed_body_that_was_cut_short_is_refused(collector: Collector, url: str) -> None:
    packer = zlib.compressobj(wbits=31)
    # What has come so far is a whole request by itself: nothing but the stream's missing end says that more was sent.
    begun = packer.compress(request(0xF00)) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert post(url, begun, Content_Encoding="gzip")[0] == 400
    # A stream may have several members, one after the other.
    assert post(url, gzip.compress(request(0xF80)) + gzip.compress(request(0xF81)), Content_Encoding="gzip")[0] == 200
    collector.wait_for()
    assert {f"{0xF80:016x}", f"{0xF81:016x}"} <= set(span_ids(collector.home))


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'{"resourceSpans": 5}', b'{"resourceSpans": [[1]]}', b"\xff"])
def test_json_of_a_wrong_shape_is_refused(collector: Collector, url: str, body: bytes) -> None:
    before = collector.status()["undecodable"].get("traces", 0)
    assert post(url, body, "application/json")[0] == 400
    assert collector.status()["undecodable"]["traces"] == before + 1


def test_a_signal_without_a_pipeline_is_said_to_be_none(tmp_path: Path) -> None:
    collector = Collector(tmp_path / "home")
    text = collector.config.read_text()
    collector.text = "\n".join(line for line in text.splitlines() if not line.startswith("    traces:"))
    with collector:
        url = collector.endpoint("http")
        assert post(f"{url}/v1/traces", request(1))[0] == 404
        error = export(collector, request(1))
        assert error is not None
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert post(f"{url}/v1/logs", b"")[0] == 200


def test_metrics_of_its_own_are_open_metrics_and_right(collector: Collector, url: str) -> None:
    post(url, request(1, 2, 3))
    status = collector.wait_for()
    with urllib.request.urlopen(collector.endpoint("health") + "/metrics", timeout=5) as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    (accepted,) = families["otelcol_receiver_accepted_spans"].samples
    assert accepted.value == status["accepted"]["traces"]
    (sent,) = families["otelcol_exporter_sent_spans"].samples
    assert (sent.labels, sent.value) == ({"exporter": "archive"}, status["sinks"]["archive"]["delivered"]["traces"])


def test_everything_listens_on_loopback(collector: Collector) -> None:
    assert all("127.0.0.1" in collector.endpoint(name) for name in ("grpc", "http", "health"))
    assert Path(collector.home / "collector.json").exists()
