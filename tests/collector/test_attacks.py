"""What a broken or hostile sender does is answered, and disturbs neither the others nor the log."""

from __future__ import annotations

import gzip
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from tests.collector.rig import Collector, post, request, span_ids

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
HALF = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        started = Collector(tmp_path_factory.mktemp("attacks") / "home", spool="shutdown_timeout: 20s").start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with ExitStack() as stack:
        stack.push(started.__exit__)
        yield started


@pytest.fixture
def url(collector: Collector) -> str:
    return collector.endpoint("http") + "/v1/traces"


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split("/")[0].split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def said_by(collector: Collector) -> str:
    """What the collector writes to standard error from the start until it has stopped; it is started again."""
    assert collector.stop() == 0
    said = collector.stderr
    collector.start()
    return said


def span(**fields: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]}).encode()


@pytest.mark.parametrize(
    "body",
    [
        span(kind="\ud800"),
        span(name="\ud800"),
        span(**{"\ud800": 1}),
        span(traceId="\ud800"),
        span(traceId="z" * 500_000),
        span(startTimeUnixNano="-5"),
        span(startTimeUnixNano=str(2**70)),
        b'{"resourceSpans": "\xff"}',
        b'{"a":' * 50_000,
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": ' + b"9" * 6_000 + b"}]}]}]}",
        b'{"resourceSpans": [null]}',
        b"null",
    ],
)
def test_json_that_is_no_request_is_a_short_400(url: str, body: bytes) -> None:
    status, _, answer = post(url, body, "application/json")
    assert status == 400
    assert len(answer) < 1_000
    assert json.loads(answer)["message"].startswith("not an OTLP traces request in JSON")


def test_absurd_numbers_and_missing_ids_do_not_hold_up_the_rest(collector: Collector, url: str) -> None:
    last = str(2**64 - 1)
    whole = {"traceId": "ab" * 16, "parentSpanId": None, "attributes": [{"key": "n", "value": {"intValue": "-7"}}]}
    assert (
        post(url, span(**whole, spanId="01" * 8, startTimeUnixNano=last, endTimeUnixNano="0"), "application/json")[0]
        == 200
    )
    assert post(url, span(name="no ids"), "application/json")[0] == 200
    assert post(url, span(**whole, spanId="02" * 8), "application/json")[0] == 200
    sink = collector.wait_for()["sinks"]["archive"]
    assert "02" * 8 in span_ids(collector.home)
    assert not sink["failing"]


def test_large_json_does_not_silence_the_collector(collector: Collector, url: str) -> None:
    attributes = [{"key": "k", "value": {"stringValue": "v"}}] * 20
    spans = [{"traceId": "ab" * 16, "spanId": "03" * 8, "attributes": attributes}] * 900
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    answers: list[int] = []
    sender = threading.Thread(target=lambda: answers.append(post(url, body, "application/json")[0]))
    sender.start()
    longest = 0.0
    asked = 0
    while sender.is_alive():
        began = time.monotonic()
        collector.status()
        longest, asked = max(longest, time.monotonic() - began), asked + 1
    sender.join()
    assert answers == [200]
    # While it is decoded, and not before and after alone
    assert asked > 5, longest


def test_senders_that_go_away_or_speak_something_else_leave_no_line_in_the_log(collector: Collector, url: str) -> None:
    for data in (
        HALF + b"Content-Length: 100\r\n\r\nhalf",
        HALF + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhalf",
        b"POST /v1/traces HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /v1/traces HTTP/1.1\r\n" + b"".join(b"X%d: a\r\n" % number for number in range(20_000)) + b"\r\n",
        HALF + b"Content-Length: -5\r\n\r\n",
        b"\x16\x03\x01" + os.urandom(200),
    ):
        with connect(url) as connection:
            connection.sendall(data)
            if b"half" not in data:
                assert b" 400 " in connection.recv(100)
    assert post(url, request(0xA1))[0] == 200
    assert len(said_by(collector).splitlines()) == 1


def test_more_senders_than_the_usual_limit_of_files_are_served(collector: Collector, url: str) -> None:
    assert collector.process is not None
    process = psutil.Process(collector.process.pid)
    with ExitStack() as stack:
        # Twice what the collector was started with (see the fixture)
        for _ in range(256):
            stack.enter_context(connect(url)).sendall(HALF + b"Content-Length: 10\r\n\r\n")
        assert post(url, request(0xA2), timeout=5)[0] == 200
        assert process.num_fds() > 256
    deadline = time.monotonic() + 5
    while process.num_fds() > 60 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.num_fds() <= 60


def test_requests_leave_no_file_open(collector: Collector, url: str) -> None:
    assert collector.process is not None
    process = psutil.Process(collector.process.pid)
    post(url, request(1))
    before = process.num_fds()
    for number in range(100):
        post(url, request(number + 1))
    assert process.num_fds() <= before + 3


def export(collector: Collector, body: bytes, **how: Any) -> grpc.RpcError | None:
    with grpc.insecure_channel(collector.endpoint("grpc"), [("grpc.max_send_message_length", -1)]) as channel:
        try:
            channel.unary_unary(EXPORT)(body, timeout=20, **how)
        except grpc.RpcError as error:
            return error
    return None


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_grpc_refuses_what_is_too_large_before_it_has_it_in_memory(
    collector: Collector, compression: grpc.Compression
) -> None:
    assert collector.process is not None
    process = psutil.Process(collector.process.pid)
    before = process.memory_info().rss
    error = export(collector, b"\0" * (128 << 20), compression=compression)
    assert error is not None
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert process.memory_info().rss - before < 100 << 20


def test_a_gzip_bomb_is_refused_without_unpacking_it(collector: Collector, url: str) -> None:
    assert collector.process is not None
    process = psutil.Process(collector.process.pid)
    before = process.memory_info().rss
    bomb = gzip.compress(b"\0" * (150 << 20), 1)
    assert len(bomb) < 1 << 20
    assert post(url, bomb, Content_Encoding="gzip")[0] == 413
    assert process.memory_info().rss - before < 50 << 20


def test_a_full_spool_is_unavailable_over_grpc_and_says_when_to_come_again(tmp_path: Path) -> None:
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    with Collector(tmp_path / "home", spool="max_size: 60KiB") as collector:
        errors = [export(collector, request(number, name="x" * 25_000)) for number in range(1, 4)]
        assert errors[:2] == [None, None]
        assert errors[2] is not None
        assert errors[2].code() is grpc.StatusCode.UNAVAILABLE
        details = dict(errors[2].trailing_metadata())["grpc-status-details-bin"]
        info = RetryInfo()
        assert Status.FromString(details).details[0].Unpack(info)
        assert info.retry_delay.seconds > 0
        assert collector.status()["refused"] == {"traces": 1}


def test_a_request_that_never_ends_does_not_hold_up_a_stop(collector: Collector, url: str) -> None:
    with connect(url) as connection:
        connection.sendall(HALF + b"Content-Length: 100\r\n\r\nhalf")
        time.sleep(0.2)
        began = time.monotonic()
        assert len(said_by(collector).splitlines()) == 1
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("door", ["grpc", "http", "health"])
def test_a_taken_port_is_one_line(tmp_path: Path, door: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        collector = Collector(tmp_path / "home")
        name = {"health": "health_check"}.get(door, door)
        free = f'{name}: {{endpoint: "127.0.0.1:0"'
        text = collector.config.read_text()
        assert free in text
        collector.text = text.replace(free, f'{name}: {{endpoint: "{address}"')
        assert collector.start().stop() == 2
    (line,) = collector.stderr.splitlines()
    assert line.startswith(f"verl-otel collector: {address}: ")
    assert not (collector.home / "collector.json").exists()
