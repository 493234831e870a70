"""The OTLP/HTTP receiver: protobuf and JSON, plain and gzip."""

from __future__ import annotations

import zlib

from aiohttp import web
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from verl_otel.collector.decode import Undecodable
from verl_otel.collector.receivers import otlp_json
from verl_otel.collector.receivers.intake import RETRY_AFTER_S, Intake
from verl_otel.collector.spool import SpoolFull

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_RESPONSES = {
    "traces": ExportTraceServiceResponse(),
    "metrics": ExportMetricsServiceResponse(),
    "logs": ExportLogsServiceResponse(),
}
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED = 3, 8


class TooLarge(ValueError):
    """A body that is, or unpacks to, more than the limit."""


def application(intake: Intake, max_bytes: int) -> web.Application:
    """The routes ``/v1/{signal}``; ``max_bytes`` limits a request, packed and unpacked."""
    app = web.Application(client_max_size=max_bytes)

    async def export(request: web.Request) -> web.Response:
        signal = request.match_info["signal"]
        kind = request.content_type
        if kind not in (_PROTOBUF, _JSON):
            return _failed(_PROTOBUF, 415, f"content type {kind!r}: send {_PROTOBUF} or {_JSON}")
        try:
            body = await _body(request, max_bytes)
            await intake.take(signal, otlp_json.to_protobuf(signal, body) if kind == _JSON else body)
        except TooLarge as error:
            return _failed(kind, 413, str(error))
        except Undecodable as error:
            return _failed(kind, 400, str(error))
        except SpoolFull as error:
            return _failed(kind, 503, str(error), {"Retry-After": str(RETRY_AFTER_S)})
        return _answer(kind, 200, _RESPONSES[signal])

    app.router.add_post(r"/v1/{signal:traces|metrics|logs}", export)
    return app


async def _body(request: web.Request, max_bytes: int) -> bytes:
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise Undecodable(f"content encoding {encoding!r}: send gzip, deflate or none")
    try:
        # aiohttp unpacks gzip and deflate itself, piece by piece, and stops at the limit.
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise TooLarge(f"the request is larger than {max_bytes} bytes") from None
    except (zlib.error, web.HTTPBadRequest, ValueError) as error:
        raise Undecodable(f"the body does not unpack: {error}") from None


def _answer(kind: str, status: int, message: object, headers: dict[str, str] | None = None) -> web.Response:
    body = json_format.MessageToJson(message).encode() if kind == _JSON else message.SerializeToString()  # type: ignore[attr-defined]
    return web.Response(body=body, status=status, content_type=kind, headers=headers)


def _failed(kind: str, status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    code = _RESOURCE_EXHAUSTED if status in (413, 503) else _INVALID_ARGUMENT
    return _answer(kind, status, Status(code=code, message=text), headers)
