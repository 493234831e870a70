"""An OTLP/HTTP endpoint in the test's own process that keeps what it is sent, and can be told to misbehave."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    inner = getattr(value, kind)
    if kind == "array_value":
        return [plain(item) for item in inner.values]
    if kind == "kvlist_value":
        return {item.key: plain(item.value) for item in inner.values}
    return inner


def attributes(record: Any) -> dict[str, Any]:
    return {item.key: plain(item.value) for item in record.attributes}


@dataclass
class Span:
    resource: dict[str, Any]
    proto: Any
    attributes: dict[str, Any]

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def key(self) -> tuple[bytes, bytes]:
        return self.proto.trace_id, self.proto.span_id

    @property
    def failed(self) -> bool:
        return self.proto.status.code == 2


@dataclass
class Event:
    resource: dict[str, Any]
    proto: Any
    attributes: dict[str, Any]
    body: Any

    @property
    def name(self) -> str:
        return self.proto.event_name or str(self.attributes.get("event.name", ""))


@dataclass
class Receiver:
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    requests: int = 0

    def __post_init__(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                owner.requests += 1
                if owner.status == 200:
                    owner.take(self.path, body)
                self.send_response(owner.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def take(self, path: str, body: bytes) -> None:
        if path.endswith("/traces"):
            for block in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in block.scope_spans:
                    self.spans += [Span(attributes(block.resource), span, attributes(span)) for span in scope.spans]
        elif path.endswith("/logs"):
            for block in ExportLogsServiceRequest.FromString(body).resource_logs:
                for scope in block.scope_logs:
                    self.events += [
                        Event(attributes(block.resource), record, attributes(record), plain(record.body))
                        for record in scope.log_records
                    ]
        else:
            for block in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in block.scope_metrics:
                    self.metrics += scope.metrics

    def of_type(self, kind: str) -> list[Span]:
        return [span for span in self.spans if span.attributes.get("verl.span.type") == kind]

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]
