"""A span of ours as a span of MLflow: inputs and outputs that a person can read, types, token usage."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from verl_otel import semconv
from verl_otel.collector.records import SpanRecord

TYPES = {
    semconv.SpanType.TRAJECTORY: "AGENT",
    semconv.SpanType.TURN: "CHAT_MODEL",
    semconv.SpanType.TOOL: "TOOL",
    semconv.SpanType.REWARD: "EVALUATOR",
}
_STATUS = {"unset": 0, "ok": 1, "error": 2}
# What inputs and outputs show already, or what is of use only to the archive
_LEFT_OUT = frozenset(
    {
        semconv.INPUT_MESSAGES,
        semconv.OUTPUT_MESSAGES,
        semconv.TOOL_ARGUMENTS,
        semconv.TOOL_RESULT,
        semconv.TURN_INPUT_TEXT,
        semconv.TURN_OUTPUT_TEXT,
        semconv.TURN_INPUT_TOKEN_IDS,
        semconv.TURN_OUTPUT_TOKEN_IDS,
        semconv.INPUT_TOKENS,
        semconv.OUTPUT_TOKENS,
        semconv.CONVERSATION_ID,
    }
)


def to_mlflow(span: SpanRecord, tools: Sequence[SpanRecord]) -> Any:
    """The MLflow span entity; ``tools`` are the tool calls that a turn asked for."""
    from mlflow.entities import Span

    attributes = {key: value for key, value in span.attributes.items() if key not in _LEFT_OUT and value is not None}
    attributes["mlflow.spanType"] = TYPES.get(span.type, "CHAIN")
    inputs, outputs = content(span, tools)
    if inputs is not None:
        attributes["mlflow.spanInputs"] = inputs
    if outputs is not None:
        attributes["mlflow.spanOutputs"] = outputs
    if span.type == semconv.SpanType.TURN:
        usage = token_usage([span])
        if usage:
            attributes["mlflow.chat.tokenUsage"] = usage
    proto = SpanProto(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_span_id),
        name=span.name,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_pairs(attributes),
        status=Status(code=_STATUS[span.status], message=span.status_message),  # type: ignore[arg-type]
    )
    for event in span.events:
        proto.events.add(name=event.name, time_unix_nano=event.time_ns, attributes=_pairs(event.attributes))
    return Span.from_otel_proto(proto)


def content(span: SpanRecord, tools: Sequence[SpanRecord]) -> tuple[Any, Any]:
    """What went in and came out of a span, in the forms that MLflow's UI draws as chat, call and result."""
    attributes = span.attributes
    if span.type in (semconv.SpanType.TRAJECTORY, semconv.SpanType.TURN):
        messages = chat(attributes.get(semconv.INPUT_MESSAGES))
        answers = chat(attributes.get(semconv.OUTPUT_MESSAGES))
        if span.type == semconv.SpanType.TURN and tools:
            answers = answers or [{"role": "assistant", "content": ""}]
            answers[-1]["tool_calls"] = [_call(tool) for tool in tools]
        reasons = attributes.get(semconv.RESPONSE_FINISH_REASONS) or [None]
        choices = [{"index": 0, "message": answer, "finish_reason": reasons[0]} for answer in answers[-1:]]
        return ({"messages": messages} if messages else None), ({"choices": choices} if choices else None)
    if span.type == semconv.SpanType.TOOL:
        return parsed(attributes.get(semconv.TOOL_ARGUMENTS)), attributes.get(semconv.TOOL_RESULT)
    if span.type == semconv.SpanType.REWARD:
        parts = {
            key.removeprefix(semconv.REWARD_PART_PREFIX): value
            for key, value in attributes.items()
            if key.startswith(semconv.REWARD_PART_PREFIX)
        }
        return None, {"reward": attributes.get(semconv.REWARD), **parts}
    return None, None


def chat(text: Any) -> list[dict[str, Any]]:
    """GenAI messages (JSON) as chat messages of role and content."""
    messages = parsed(text)
    found: list[dict[str, Any]] = []
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, Mapping):
            continue
        plain: dict[str, Any] = {"role": message.get("role", "user"), "content": ""}
        for part in message.get("parts") or ():
            kind = part.get("type")
            if kind == "text":
                plain["content"] += str(part.get("content", ""))
            elif kind == "tool_call_response":
                plain["content"] += str(part.get("response", ""))
                plain["tool_call_id"] = part.get("id")
            elif kind == "tool_call":
                function = {"name": part.get("name"), "arguments": _text(part.get("arguments"))}
                call = {"id": part.get("id"), "type": "function", "function": function}
                plain.setdefault("tool_calls", []).append(call)
            else:
                plain["content"] += f"[{part.get('modality', kind)}]"
        found.append(plain)
    return found


def token_usage(spans: Iterable[SpanRecord]) -> dict[str, int]:
    """Sums over spans; empty when none says."""
    known = [span for span in spans if semconv.INPUT_TOKENS in span.attributes]
    if not known:
        return {}
    given = sum(int(span.attributes[semconv.INPUT_TOKENS]) for span in known)
    made = sum(int(span.attributes.get(semconv.OUTPUT_TOKENS, 0)) for span in known)
    return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}


def parsed(text: Any) -> Any:
    """JSON if it is, else the text."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _call(tool: SpanRecord) -> dict[str, Any]:
    attributes = tool.attributes
    function = {
        "name": attributes.get(semconv.TOOL_NAME),
        "arguments": _text(attributes.get(semconv.TOOL_ARGUMENTS)),
    }
    return {"id": attributes.get(semconv.TOOL_CALL_ID), "type": "function", "function": function}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items()]


def _any(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(string_value=base64.b64encode(value).decode())
    return AnyValue(
        string_value=value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    )
