"""The OTLP/gRPC receiver. Requests stay bytes: the services are registered without generated classes."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import UNAVAILABLE
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from verl_otel.collector.decode import Undecodable
from verl_otel.collector.receivers.intake import RETRY_AFTER_S, Intake, NotTaken
from verl_otel.collector.spool import SpoolFull

_SERVICES = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}
_DETAILS = "grpc-status-details-bin"


def server(intake: Intake, max_bytes: int) -> grpc.aio.Server:
    """A server with the three services; ``max_bytes`` limits a message."""
    made = grpc.aio.server(options=[("grpc.max_receive_message_length", max_bytes), ("grpc.so_reuseport", 0)])
    handlers = []
    for signal, service in _SERVICES.items():
        method = grpc.unary_unary_rpc_method_handler(_export(intake, signal))
        handlers.append(grpc.method_handlers_generic_handler(service, {"Export": method}))
    made.add_generic_rpc_handlers(tuple(handlers))
    return made


def _export(intake: Intake, signal: str) -> Any:
    async def export(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            await intake.take(signal, request)
        except NotTaken as error:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        except Undecodable as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except SpoolFull as error:
            # RetryInfo tells OTLP clients when to send this again.
            status = Status(code=UNAVAILABLE, message=str(error))
            status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=RETRY_AFTER_S)))
            context.set_trailing_metadata(((_DETAILS, status.SerializeToString()),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return b""

    return export
