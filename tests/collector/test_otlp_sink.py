"""The sinks that forward, against a real collector and endpoints that answer as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.collector.rig import Collector, post, request, span_ids
from verl_otel.collector.records import Batch, Position
from verl_otel.collector.sinks.base import Counters, Reject, Retry, SinkContext
from verl_otel.collector.sinks.otlp import OtlpGrpcSink, OtlpHttpSink, OtlpSink


def sink(kind: type[OtlpSink], counters: Counters | None = None, **config: Any) -> OtlpSink:
    context = SinkContext("otlp", Path(), Path(), counters or Counters())
    return kind(kind.check({"timeout": "5s", **config}, "exporters.otlp"), context)


def batch(*bodies: bytes, at: int = 0) -> Batch:
    return Batch(Position(0, at), Position(0, at + 1), raw=[("traces", body) for body in bodies])


class HttpEndpoint:
    """Answers with the next of ``answers`` (status, headers, body), then with 200; ``got`` has what came."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.got.append((self.path, dict(self.headers), body))
                status, headers, answer = owner.answers.pop(0) if owner.answers else (200, {}, b"")
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def endpoint() -> Iterator[HttpEndpoint]:
    made = HttpEndpoint()
    yield made
    made.server.shutdown()


def test_requests_go_out_as_they_came_with_the_headers_of_the_config(endpoint: HttpEndpoint) -> None:
    sink(OtlpHttpSink, endpoint=endpoint.url + "/", compression="none", headers={"x-key": "k"}).deliver(
        batch(request(1))
    )
    ((path, headers, body),) = endpoint.got
    assert (path, body, headers["x-key"]) == ("/v1/traces", request(1), "k")
    assert headers["Content-Type"] == "application/x-protobuf"


@pytest.mark.parametrize("status", [301, 401, 403, 408, 429, 500, 502, 503])
def test_trouble_of_the_destination_is_no_reason_to_give_up(endpoint: HttpEndpoint, status: int) -> None:
    endpoint.answers = [(status, {"Retry-After": "7"}, b"")]
    with pytest.raises(Retry) as caught:
        sink(OtlpHttpSink, endpoint=endpoint.url).deliver(batch(request(1)))
    assert caught.value.after_s == 7


def test_retry_after_may_be_a_date(endpoint: HttpEndpoint) -> None:
    endpoint.answers = [(503, {"Retry-After": formatdate(time.time() + 60, usegmt=True)}, b"")]
    with pytest.raises(Retry) as caught:
        sink(OtlpHttpSink, endpoint=endpoint.url).deliver(batch(request(1)))
    assert 50 < (caught.value.after_s or 0) <= 60


def test_after_a_retry_a_batch_goes_on_where_it_was_and_what_is_refused_is_named(endpoint: HttpEndpoint) -> None:
    bodies = [request(1), request(2, 3), request(4), request(5)]
    endpoint.answers = [(200, {}, b""), (400, {}, b""), (503, {}, b"")]
    forwarder = sink(OtlpHttpSink, endpoint=endpoint.url, compression="none")
    with pytest.raises(Retry):
        forwarder.deliver(batch(*bodies))
    with pytest.raises(Reject) as caught:
        forwarder.deliver(batch(*bodies))
    assert [body for _, _, body in endpoint.got] == [*bodies[:3], bodies[2], bodies[3]]
    assert (caught.value.count, caught.value.requests) == (2, (("traces", bodies[1]),))
    forwarder.deliver(batch(request(6), at=1))
    assert endpoint.got[-1][2] == request(6)


def test_a_partial_success_is_counted_and_not_sent_again(endpoint: HttpEndpoint) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 3
    endpoint.answers = [(200, {}, answer.SerializeToString()), (200, {}, b"<html>fine</html>")]
    counters = Counters()
    forwarder = sink(OtlpHttpSink, counters, endpoint=endpoint.url)
    forwarder.deliver(batch(request(1), request(2)))
    assert counters.values == {"otlp.rejected_spans": 3}
    assert len(endpoint.got) == 2


def test_nobody_listening_is_a_retry() -> None:
    with pytest.raises(Retry, match=r"127\.0\.0\.1:9"):
        sink(OtlpHttpSink, endpoint="http://127.0.0.1:9").deliver(batch(request(1)))
    with pytest.raises(Retry, match="UNAVAILABLE"):
        sink(OtlpGrpcSink, endpoint="http://127.0.0.1:9").deliver(batch(request(1)))


@pytest.fixture
def grpc_endpoint() -> Iterator[tuple[str, list[grpc.StatusCode], list[Any]]]:
    answers: list[Any] = []
    got: list[Any] = []

    def export(body: bytes, context: grpc.ServicerContext) -> bytes:
        got.append((dict(context.invocation_metadata()), body))
        if answers:
            code, seconds = answers.pop(0)
            if seconds:
                status = Status(code=code.value[0])
                status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(code, "no")
        return b""

    server = grpc.server(ThreadPoolExecutor(2))
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    methods = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", answers, got
    server.stop(None)


@pytest.mark.parametrize(
    ("code", "seconds", "wanted"),
    [
        (grpc.StatusCode.UNAVAILABLE, 0, Retry),
        (grpc.StatusCode.UNAUTHENTICATED, 0, Retry),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 3, Retry),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 0, Reject),
        (grpc.StatusCode.INVALID_ARGUMENT, 0, Reject),
    ],
)
def test_grpc_answers_mean_what_otlp_says(
    grpc_endpoint: tuple[str, list[Any], list[Any]], code: grpc.StatusCode, seconds: int, wanted: type[Exception]
) -> None:
    address, answers, got = grpc_endpoint
    answers.append((code, seconds))
    forwarder = sink(OtlpGrpcSink, endpoint=address, tls={"insecure": True}, headers={"X-Key": "k"})
    with pytest.raises(wanted) as caught:
        forwarder.deliver(batch(request(1)))
    if isinstance(caught.value, Retry):
        assert caught.value.after_s == (seconds or None)
        forwarder.deliver(batch(request(1)))
    metadata, body = got[-1]
    assert (metadata["x-key"], body) == ("k", request(1))


def test_one_collector_feeds_another_over_grpc_and_http(tmp_path: Path) -> None:
    with Collector(tmp_path / "second") as second:
        exporters = {
            "otlp_grpc": f"{{endpoint: {second.endpoint('grpc')!r}, tls: {{insecure: true}}}}",
            "otlp_http": f"{{endpoint: {second.endpoint('http')!r}}}",
        }
        with Collector(tmp_path / "first", exporters) as first:
            assert post(first.endpoint("http") + "/v1/traces", request(1, 2))[0] == 200
            assert first.stop() == 0
        status = second.until(lambda status: status["accepted"].get("traces") == 4)
        assert status["undecodable"] == {}
        second.wait_for()
        assert second.stop() == 0
    assert sorted(span_ids(second.home)) == sorted([f"{1:016x}", f"{2:016x}"] * 2)
