"""The OTLP/HTTP receiver: protobuf and JSON, plain, gzip and deflate."""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import Any

from aiohttp import web
from google.protobuf import json_format
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from verl_otel.collector.decode import Undecodable
from verl_otel.collector.receivers.intake import RETRY_AFTER_S, Intake, NotTaken
from verl_otel.collector.spool import SpoolFull

logger = logging.getLogger(__name__)

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_ENCODINGS = ("identity", "gzip", "deflate")
_RESPONSES = {
    "traces": ExportTraceServiceResponse(),
    "metrics": ExportMetricsServiceResponse(),
    "logs": ExportLogsServiceResponse(),
}
# What takes longer than a few milliseconds to unpack must not hold up the other senders.
_LARGE = 1 << 20


class TooLarge(ValueError):
    """A body that is, or unpacks to, more than the limit."""


def runner(intake: Intake, max_bytes: int) -> web.AppRunner:
    """A server of the routes ``/v1/{signal}``; ``max_bytes`` limits a request, packed and unpacked."""
    app = web.Application(client_max_size=max_bytes)

    async def export(request: web.Request) -> web.Response:
        signal, kind = request.match_info["signal"], request.content_type
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if kind not in (_PROTOBUF, _JSON):
            return _failed(_PROTOBUF, 415, f"content type {kind!r}: send {_PROTOBUF} or {_JSON}")
        if encoding not in _ENCODINGS:
            return _failed(kind, 415, f"content encoding {encoding!r}: send one of {', '.join(_ENCODINGS)}")
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _too_large(kind, max_bytes)
        except (OSError, web.RequestPayloadError) as error:
            # A sender that is gone hears nothing of this; one whose body is malformed does.
            return _failed(kind, 400, f"the body did not arrive: {error}")
        try:
            if encoding != "identity":
                unpack = (body, max_bytes)
                body = await asyncio.to_thread(_unpack, *unpack) if len(body) > _LARGE else _unpack(*unpack)
            await intake.take(signal, body, is_json=kind == _JSON)
        except TooLarge:
            return _too_large(kind, max_bytes)
        except NotTaken as error:
            return _failed(kind, 404, str(error))
        except Undecodable as error:
            return _failed(kind, 400, str(error))
        except SpoolFull as error:
            return _failed(kind, 503, str(error), {"Retry-After": str(RETRY_AFTER_S)})
        except Exception as error:
            logger.exception("a request of %s could not be taken", signal)
            return _failed(kind, 500, f"{type(error).__name__} in the collector; see its log")
        return _answer(kind, 200, _RESPONSES[signal])

    app.router.add_post(r"/v1/{signal:traces|metrics|logs}", export)
    # Unpacked here and not by aiohttp, which takes a stream that was cut short for a whole one. It would also log a
    # traceback for whatever talks no HTTP to this port; what fails in here is logged above.
    silent = logging.getLogger(f"{__name__}.aiohttp")
    silent.setLevel(logging.CRITICAL)
    return web.AppRunner(app, access_log=None, shutdown_timeout=5, auto_decompress=False, logger=silent)


def _unpack(body: bytes, max_bytes: int) -> bytes:
    """Undo gzip or zlib, of one or several members; never makes more than ``max_bytes`` and a little."""
    parts: list[bytes] = []
    room = max_bytes
    while body:
        member = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            part = member.decompress(body, room + 1)
        except zlib.error as error:
            raise Undecodable(f"the body does not unpack: {error}") from None
        room -= len(part)
        if room < 0:
            raise TooLarge
        if not member.eof:
            raise Undecodable("the body does not unpack: it is cut short")
        parts.append(part)
        body = member.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


_CODES = {
    400: code_pb2.INVALID_ARGUMENT,
    500: code_pb2.INTERNAL,
    404: code_pb2.UNIMPLEMENTED,
    413: code_pb2.RESOURCE_EXHAUSTED,
    415: code_pb2.INVALID_ARGUMENT,
    503: code_pb2.UNAVAILABLE,
}


def _too_large(kind: str, max_bytes: int) -> web.Response:
    return _failed(kind, 413, f"the request is larger than {max_bytes} bytes; send smaller batches")


def _failed(kind: str, status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return _answer(kind, status, Status(code=_CODES[status], message=text), headers)


def _answer(kind: str, status: int, message: Any, headers: dict[str, str] | None = None) -> web.Response:
    body = json_format.MessageToJson(message).encode() if kind == _JSON else message.SerializeToString()
    return web.Response(body=body, status=status, content_type=kind, headers=headers)
