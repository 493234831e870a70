"""A trajectory's conversation, text and tokens, put together from turns that carry only what is new."""

from __future__ import annotations

import binascii
import json
import sys
from array import array
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from verl_otel import semconv
from verl_otel.collector.archive.model import Message, SpanNode, ToolCall


def turn_index(span: SpanNode) -> int | None:
    value = span.attributes.get(semconv.TURN_INDEX)
    return value if isinstance(value, int) else None


def messages(root: SpanNode | None, turns: Sequence[SpanNode], tools: Sequence[SpanNode]) -> list[Message]:
    """The whole conversation in order. ``turns`` are sorted by index, ``tools`` by start; some may be missing."""
    by_turn = _tools_by_turn(turns, tools)
    said = _parse(root.attributes.get(semconv.INPUT_MESSAGES), "user") if root is not None else []
    answered_by_tools = False
    for place, turn in enumerate(turns):
        if not (place == 0 and said) and not answered_by_tools:
            said += _new_input(turn)
        calls = by_turn.pop(turn_index(turn), [])
        said += _turn(turn, calls)
        answered_by_tools = bool(calls)
    # While a run goes on, a tool's span may be there before that of the turn that called it.
    for calls in by_turn.values():
        said += _turn(None, calls)
    if not turns and root is not None:
        said += _parse(root.attributes.get(semconv.OUTPUT_MESSAGES), "assistant")
    return said


def text(turns: Sequence[SpanNode]) -> str | None:
    """The sequence's text: ``seq = seq[:offset] + input + output``, turn by turn.

    ``None`` when a turn is missing or has no text, or when an offset in tokens falls inside a text.
    """
    pieces: list[tuple[str, int | None]] = []
    for place, turn in enumerate(turns):
        new = turn.attributes.get(semconv.TURN_INPUT_TEXT)
        generated = turn.attributes.get(semconv.TURN_OUTPUT_TEXT)
        if turn_index(turn) != place:
            return None
        if new is None and generated is None:
            # A call of the engine that failed has added nothing.
            if turn.status == "error":
                continue
            return None
        offset = turn.attributes.get(semconv.TURN_INPUT_OFFSET)
        if isinstance(offset, int) and not _cut(pieces, offset):
            return None
        pieces.append((str(new or ""), _count(turn, semconv.TURN_INPUT_TOKEN_IDS, semconv.INPUT_TOKENS, offset or 0)))
        pieces.append((str(generated or ""), _count(turn, semconv.TURN_OUTPUT_TOKEN_IDS, semconv.OUTPUT_TOKENS, 0)))
    return "".join(piece for piece, _ in pieces) if pieces else None


def token_ids(turns: Sequence[SpanNode]) -> list[int] | None:
    """The sequence's token ids by the same rule; ``None`` when a turn or its ids are missing."""
    sequence: list[int] = []
    for place, turn in enumerate(turns):
        new = unpack(turn.attributes.get(semconv.TURN_INPUT_TOKEN_IDS))
        generated = unpack(turn.attributes.get(semconv.TURN_OUTPUT_TOKEN_IDS))
        if turn_index(turn) != place:
            return None
        if new is None and generated is None:
            if turn.status == "error":
                continue
            return None
        offset = turn.attributes.get(semconv.TURN_INPUT_OFFSET, len(sequence))
        if not isinstance(offset, int) or offset > len(sequence):
            return None
        sequence = sequence[:offset] + (new or []) + (generated or [])
    return sequence or None


def unpack(packed: object) -> list[int] | None:
    """Token ids from base64 of little-endian uint32; ``None`` for what is not that (a cut text, for one)."""
    if not isinstance(packed, str):
        return None
    try:
        raw = b64decode(packed, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) % 4:
        return None
    ids = array("I", raw)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def _cut(pieces: list[tuple[str, int | None]], offset: int) -> bool:
    """Keep the first ``offset`` tokens of ``pieces``; False when that would cut through a text."""
    if offset == 0:
        pieces.clear()
        return True
    counts = [count for _, count in pieces if count is not None]
    if len(counts) < len(pieces):
        return True
    total = sum(counts)
    while pieces and total > offset:
        total -= counts.pop()
        pieces.pop()
    return total >= offset or not pieces


def _count(turn: SpanNode, ids: str, usage: str, offset: int) -> int | None:
    unpacked = unpack(turn.attributes.get(ids))
    if unpacked is not None:
        return len(unpacked)
    used = turn.attributes.get(usage)
    return used - offset if isinstance(used, int) and used >= offset else None


def _tools_by_turn(turns: Sequence[SpanNode], tools: Sequence[SpanNode]) -> dict[int | None, list[SpanNode]]:
    by_turn: dict[int | None, list[SpanNode]] = {}
    for tool in tools:
        index = turn_index(tool)
        if index is None and tool.start is not None:
            earlier = [turn for turn in turns if turn.start is not None and turn.start <= tool.start]
            index = turn_index(earlier[-1]) if earlier else None
        by_turn.setdefault(index, []).append(tool)
    return by_turn


def _new_input(turn: SpanNode) -> list[Message]:
    new = _parse(turn.attributes.get(semconv.INPUT_MESSAGES), "user")
    if new:
        return new
    raw = turn.attributes.get(semconv.TURN_INPUT_TEXT)
    return [Message("user", raw)] if isinstance(raw, str) and raw.strip() else []


def _turn(turn: SpanNode | None, tools: Sequence[SpanNode]) -> list[Message]:
    calls = [
        ToolCall(_attribute(tool, semconv.TOOL_CALL_ID), _tool_name(tool), _attribute(tool, semconv.TOOL_ARGUMENTS))
        for tool in tools
    ]
    content = ""
    if turn is not None:
        generated = _parse(turn.attributes.get(semconv.OUTPUT_MESSAGES), "assistant")
        content = "\n".join(message.content for message in generated if message.content)
        if not generated:
            content = _attribute(turn, semconv.TURN_OUTPUT_TEXT)
        calls = calls or [call for message in generated for call in message.tool_calls]
    said = [Message("assistant", content, calls)]
    for tool in tools:
        failed = tool.status == "error"
        error = (_attribute(tool, semconv.ERROR_TYPE) or tool.status_message or "error") if failed else None
        call_id = _attribute(tool, semconv.TOOL_CALL_ID) or None
        said.append(
            Message("tool", _attribute(tool, semconv.TOOL_RESULT), [], _tool_name(tool), call_id, error),
        )
    return said


def _tool_name(tool: SpanNode) -> str:
    return _attribute(tool, semconv.TOOL_NAME) or tool.name.removeprefix("execute_tool ")


def _attribute(span: SpanNode, name: str) -> str:
    return _content(span.attributes.get(name))


def _content(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse(value: object, role: str) -> list[Message]:
    """GenAI messages (or OpenAI's ``content`` form); a text that is no JSON, because it was cut, is one of ``role``."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return [Message(role, str(value))] if str(value).strip() else []
    if not isinstance(value, list):
        return []
    return [_message(item, role) for item in value if isinstance(item, Mapping)]


def _message(item: Mapping[str, Any], role: str) -> Message:
    message = Message(str(item.get("role") or role), "", name=item.get("name"), tool_call_id=item.get("tool_call_id"))
    parts = item.get("parts", item.get("content"))
    texts: list[str] = []
    for part in [parts] if isinstance(parts, str) else parts or []:
        kind = part.get("type") if isinstance(part, Mapping) else "text"
        if not isinstance(part, Mapping):
            texts.append(_content(part))
        elif kind == "tool_call":
            message.tool_calls.append(_call(part))
        elif kind == "tool_call_response":
            message.tool_call_id = message.tool_call_id or part.get("id")
            texts.append(_content(part.get("response", part.get("result"))))
        elif "content" in part or "text" in part:
            texts.append(_content(part.get("content", part.get("text"))))
        else:
            texts.append(f"[{kind}]")
    for call in item.get("tool_calls") or []:
        if isinstance(call, Mapping):
            message.tool_calls.append(_call({**call, **(call.get("function") or {})}))
    message.content = "\n".join(texts)
    return message


def _call(part: Mapping[str, Any]) -> ToolCall:
    return ToolCall(_content(part.get("id")), _content(part.get("name")), _content(part.get("arguments")))
