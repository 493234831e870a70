"""OTLP's JSON form. It is protobuf's, but for ids, which are hex there and base64 in protobuf's."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format

from verl_otel.collector.decode import REQUESTS, Undecodable

_IDS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})


def to_protobuf(signal: str, text: bytes) -> bytes:
    """The protobuf bytes of a JSON request; raises ``Undecodable``."""
    try:
        node = json.loads(text)
        if not isinstance(node, dict):
            raise ValueError("it is no object")
        message = json_format.ParseDict(_with_base64_ids(node), REQUESTS[signal](), ignore_unknown_fields=True)
        encoded: bytes = message.SerializeToString()
        return encoded
    except Exception as error:
        # protobuf answers some wrong shapes with errors of its own code, SystemError among them.
        raise Undecodable(f"not an OTLP {signal} request in JSON: {error}") from None


def _with_base64_ids(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _id(item) if key in _IDS else _with_base64_ids(item) for key, item in node.items()}
    if isinstance(node, list):
        return [_with_base64_ids(item) for item in node]
    return node


def _id(text: Any) -> str | None:
    if text is None:
        return None
    try:
        return base64.b64encode(bytes.fromhex(text)).decode()
    except (TypeError, ValueError):
        raise ValueError(f"id {text!r} is not hex") from None
