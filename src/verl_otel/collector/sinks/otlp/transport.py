"""One OTLP request to its destination, over HTTP or gRPC: the bytes of the answer, or ``Retry`` or ``Reject``."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import grpc
import requests
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from verl_otel.collector.sinks.base import Reject, Retry

Transport = Callable[[str, bytes], bytes]

_SERVICES = {"traces": "trace.v1.TraceService", "metrics": "metrics.v1.MetricsService", "logs": "logs.v1.LogsService"}
# What OTLP names as passing; and a missing or expired credential, which is no property of the data either.
_RETRYABLE_HTTP = frozenset({401, 403, 408, 429})
_NOT_IMPLEMENTED = 501
_RETRYABLE_GRPC = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


def over_http(config: Mapping[str, Any]) -> Transport:
    """Posts to ``config["urls"]``; a signal without one is left out."""
    session = requests.Session()
    session.headers.update({"Content-Type": "application/x-protobuf", **config["headers"]})
    if config["gzip"]:
        session.headers["Content-Encoding"] = "gzip"
    if config["ca_file"]:
        session.verify = config["ca_file"]

    def send(signal: str, data: bytes) -> bytes:
        url = config["urls"][signal]
        if not url:
            return b""
        body = gzip.compress(data, 1) if config["gzip"] else data
        try:
            answer = session.post(url, body, timeout=config["timeout"], allow_redirects=False)
        except requests.RequestException as error:
            raise Retry(f"{url}: {error}") from None
        if answer.status_code < 300:
            return answer.content
        text = f"{url} answered {answer.status_code} {answer.reason}"
        # Redirects and server errors are trouble of the destination, not of the data.
        code = answer.status_code
        if code < 400 or code in _RETRYABLE_HTTP or (code >= 500 and code != _NOT_IMPLEMENTED):
            raise Retry(text, _seconds(answer.headers.get("Retry-After", "")))
        raise Reject(text)

    return send


def over_grpc(config: Mapping[str, Any]) -> Transport:
    """Calls the three services at ``config["target"]``."""
    compression = grpc.Compression.Gzip if config["gzip"] else grpc.Compression.NoCompression
    if config["insecure"]:
        channel = grpc.insecure_channel(config["target"], compression=compression)
    else:
        roots = Path(config["ca_file"]).read_bytes() if config["ca_file"] else None
        channel = grpc.secure_channel(config["target"], grpc.ssl_channel_credentials(roots), compression=compression)
    metadata = [(name.lower(), value) for name, value in config["headers"].items()]
    methods = {
        signal: channel.unary_unary(f"/opentelemetry.proto.collector.{service}/Export")
        for signal, service in _SERVICES.items()
    }

    def send(signal: str, data: bytes) -> bytes:
        try:
            answer: bytes = methods[signal](data, timeout=config["timeout"], metadata=metadata)
        except grpc.RpcError as error:
            text = f"{config['target']} answered {error.code().name}: {error.details()}"
            after = _retry_info(error)
            # OTLP: what is exhausted comes back only if the answer says when.
            if error.code() in _RETRYABLE_GRPC or after is not None:
                raise Retry(text, after) from None
            raise Reject(text) from None
        return answer

    return send


def _seconds(retry_after: str) -> float | None:
    """``Retry-After``: seconds, or a date."""
    if retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _retry_info(error: Any) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return float(info.retry_delay.ToNanoseconds()) / 1e9
    return None
