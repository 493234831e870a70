"""Forwards OTLP requests in order, and counts what the destination says it did not keep."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from verl_otel.collector import decode
from verl_otel.collector.records import Batch, Position
from verl_otel.collector.sinks.base import Reject, SinkContext
from verl_otel.collector.sinks.otlp import transport
from verl_otel.collector.sinks.otlp.config import check_grpc, check_http, is_url

logger = logging.getLogger(__name__)

_PARTIAL: dict[str, tuple[Any, str]] = {
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
}


class OtlpSink:
    """Over HTTP where ``endpoint`` is a URL (or a signal has its own), else over gRPC."""

    wants = frozenset({"raw"})

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        speaks_grpc = config.get("endpoint") and not is_url(config["endpoint"])
        return check_grpc(config, path) if speaks_grpc else check_http(config, path)

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self._send = transport.over_grpc(config) if config["protocol"] == "grpc" else transport.over_http(config)
        self._counters = context.counters
        self._name = context.name
        self._batch: Position | None = None
        self._done = 0
        self._refused: list[tuple[str, bytes]] = []
        self._reason = ""

    def start(self) -> Position | None:
        return None

    def deliver(self, batch: Batch) -> None:
        # A batch is many requests: when one has to be tried again, those before it do not go out once more.
        if self._batch != batch.start:
            self._batch, self._done, self._refused = batch.start, 0, []
        for signal, data in batch.raw[self._done :]:
            try:
                self._note_partial(signal, self._send(signal, data))
            except Reject as error:
                self._refused.append((signal, data))
                self._reason = str(error)
            self._done += 1
        if self._refused:
            count = sum(decode.count(signal, decode.parse(signal, data)) for signal, data in self._refused)
            raise Reject(self._reason, count, tuple(self._refused))

    def _note_partial(self, signal: str, answer: bytes) -> None:
        """Some destinations take a request but for some of its items; OTLP forbids to send those again."""
        message, field = _PARTIAL[signal]
        try:
            partial = message.FromString(answer).partial_success
        except Exception:
            # It took the request; that its answer is no protobuf (some answer JSON, or text) is no loss.
            return
        count = int(getattr(partial, field))
        if count:
            self._counters.add(f"otlp.{field}", count)
            logger.warning(
                "%s: the destination dropped %d of a request's %s: %s", self._name, count, signal, partial.error_message
            )

    def tick(self) -> None:
        pass

    def committed(self) -> Position | None:
        return None

    def close(self, drain: bool) -> None:
        pass


class OtlpHttpSink(OtlpSink):
    """``otlp_http``."""

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        return check_http(config, path)


class OtlpGrpcSink(OtlpSink):
    """``otlp_grpc``."""

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        return check_grpc(config, path)
