"""A real collector in its own process, and clients for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

CONFIG = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:0"}}, http: {{endpoint: "127.0.0.1:0", max_request_body_size: 1MiB}}}}}}}}
exporters: {{{exporters}}}
extensions: {{health_check: {{endpoint: "127.0.0.1:0"}}, spool: {{{spool}}}}}
service:
  extensions: [health_check, spool]
  pipelines:
    traces: {{receivers: [otlp], exporters: [{names}]}}
    metrics: {{receivers: [otlp], exporters: [{names}]}}
    logs: {{receivers: [otlp], exporters: [{names}]}}
"""


@dataclass
class Collector:
    """Start it with ``with``; ``home`` outlives it."""

    home: Path
    exporters: dict[str, str] = field(default_factory=lambda: {"archive": "{flush_interval: 200ms}"})
    spool: str = "shutdown_timeout: 20s"
    text: str = ""
    """The whole configuration, instead of ``exporters`` and ``spool``."""
    process: subprocess.Popen[str] | None = None
    stderr: str = ""

    @property
    def config(self) -> Path:
        file = self.home.parent / f"{self.home.name}.yaml"
        exporters = ", ".join(f"{name}: {keys}" for name, keys in self.exporters.items())
        made = CONFIG.format(exporters=exporters, spool=self.spool, names=", ".join(self.exporters))
        file.write_text(self.text or made)
        return file

    def start(self) -> Collector:
        argv = [sys.executable, "-m", "verl_otel.cli.main", "collector"]
        argv += ["--home", str(self.home), "--config", str(self.config)]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("VERL_OTEL_", "OTEL_"))}
        # Where the test's own sink is.
        paths = [str(Path(__file__).with_name("plugin")), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.process = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process.poll() is not None or (self.published() or {}).get("pid") == self.process.pid:
                break
            time.sleep(0.05)
        return self

    def published(self) -> dict[str, Any] | None:
        file = self.home / "collector.json"
        return json.loads(file.read_text()) if file.exists() else None

    def endpoint(self, name: str) -> str:
        published = self.published()
        assert published is not None, self.stop()
        return str(published["endpoints"][name])

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.endpoint("health"), timeout=5) as response:
            return json.load(response)

    def wait_for(self, sink: str = "archive", timeout: float = 30) -> dict[str, Any]:
        """The status once ``sink`` has everything."""
        return self.until(lambda status: not status["sinks"][sink]["pending_bytes"], timeout)

    def until(self, true: Callable[[dict[str, Any]], Any], timeout: float = 30) -> dict[str, Any]:
        """The status once ``true`` of it."""
        deadline = time.monotonic() + timeout
        while not true(status := self.status()):
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
        return status

    def stop(self, number: int = signal.SIGTERM, timeout: float = 40) -> int:
        """End it; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, self.stderr = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def __enter__(self) -> Collector:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=20)


def span_ids(home: Path) -> list[str]:
    """Every span row of the archive."""
    import duckdb

    files = list(home.glob("archive/signal=spans/*/*.parquet"))
    if not files:
        return []
    query = "SELECT span_id FROM read_parquet($files, union_by_name = true)"
    return [row[0] for row in duckdb.execute(query, {"files": [str(file) for file in files]}).fetchall()]


def request(*ids: int, run_id: str = "run", name: str = "s") -> bytes:
    """A traces request with one span for each id."""
    message = ExportTraceServiceRequest()
    block = message.resource_spans.add()
    attribute = block.resource.attributes.add()
    attribute.key, attribute.value.string_value = "rl.run.id", run_id
    spans = block.scope_spans.add().spans
    for number in ids:
        span = spans.add(name=name, start_time_unix_nano=1, end_time_unix_nano=2)
        span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    return message.SerializeToString()


def post(
    url: str, body: bytes, kind: str = "application/x-protobuf", timeout: float = 20, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    message = urllib.request.Request(url, body, {"Content-Type": kind, **named}, method="POST")
    try:
        with urllib.request.urlopen(message, timeout=timeout) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()
