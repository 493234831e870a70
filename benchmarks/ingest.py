"""Spans a second that a collector acknowledges, over HTTP and gRPC: ``python benchmarks/ingest.py [SECONDS]``.

Each request is 512 spans of 12 attributes (1.3 MB); eight senders wait for the answer, which comes when it is on disk.
``a core`` is per second of the collector's own CPU time. Beside it the same without ``fdatasync``.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SPANS, SENDERS = 512, 8
# Nobody listens at the sink's end: its process waits, and takes no CPU from the receivers.
CONFIG = """
receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:0"}, http: {endpoint: "127.0.0.1:0"}}}}
exporters: {otlp_http: {endpoint: "http://127.0.0.1:9", retry_on_failure: {initial_interval: 1h}}}
extensions: {spool: {shutdown_timeout: 0}}
service: {extensions: [spool], pipelines: {traces: {receivers: [otlp], exporters: [otlp_http]}}}
"""
COLLECTOR = "import os, sys; from verl_otel.cli.main import main; {}; sys.exit(main(sys.argv[1:]))"
Send = Callable[[], None]


def body() -> bytes:
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    for number in range(SPANS):
        span = spans.add(name="chat model", start_time_unix_nano=1, end_time_unix_nano=2)
        span.trace_id, span.span_id = (number + 1).to_bytes(16, "big"), (number + 1).to_bytes(8, "big")
        for key in range(12):
            span.attributes.add(key=f"gen_ai.attribute.{key}").value.string_value = "v" * 175
    return message.SerializeToString()


def over_http(address: str, data: bytes) -> Send:
    connection = http.client.HTTPConnection(address.removeprefix("http://"))

    def send() -> None:
        connection.request("POST", "/v1/traces", data, {"Content-Type": "application/x-protobuf"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

    return send


def over_grpc(address: str, data: bytes) -> Send:
    # Without an option of its own, channels to one address share a connection.
    channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
    method = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
    return lambda: method(data) and None


def load(make: Callable[[str, bytes], Send], address: str, data: bytes, seconds: float) -> int:
    """How many requests were acknowledged in ``seconds``."""
    counts = [0] * SENDERS
    deadline = time.monotonic() + seconds

    def run(lane: int) -> None:
        send = make(address, data)
        while time.monotonic() < deadline:
            send()
            counts[lane] += 1

    threads = [threading.Thread(target=run, args=(lane,)) for lane in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def measure(seconds: float, sync: bool) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        home, config = Path(folder) / "home", Path(folder) / "config.yaml"
        config.write_text(CONFIG)
        patch = "pass" if sync else "os.fdatasync = lambda handle: None"
        argv = [
            sys.executable,
            "-c",
            COLLECTOR.format(patch),
            "collector",
            "--home",
            str(home),
            "--config",
            str(config),
        ]
        process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        try:
            while not (home / "collector.json").exists():
                assert process.poll() is None, "the collector did not start"
                time.sleep(0.1)
            endpoints = json.loads((home / "collector.json").read_text())["endpoints"]
            for name, make in (("http", over_http), ("grpc", over_grpc)):
                load(make, endpoints[name], body(), 0.5)
                before, began = psutil.Process(process.pid).cpu_times(), time.monotonic()
                spans = SPANS * load(make, endpoints[name], body(), seconds)
                wall, after = time.monotonic() - began, psutil.Process(process.pid).cpu_times()
                cpu = after.user + after.system - before.user - before.system
                kind = "on disk" if sync else "no sync"
                print(f"{name}  {kind}  {spans / wall:9,.0f} spans/s  {spans / cpu:9,.0f} a core")
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    for synced in (True, False):
        measure(float(sys.argv[1]) if len(sys.argv) > 1 else 4, synced)
