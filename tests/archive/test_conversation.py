"""How a trajectory's conversation, text and tokens are put together from turns that carry only what is new."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.archive.factory import messages as said
from tests.archive.factory import pack
from verl_otel import semconv
from verl_otel.collector.archive import conversation
from verl_otel.collector.archive.model import Message, SpanNode, ToolCall

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def node(kind: str, at: int = 0, status: str = "unset", name: str = "", **attributes: Any) -> SpanNode:
    names = {key: getattr(semconv, key) for key in attributes}
    values = {names[key]: value for key, value in attributes.items()}
    return SpanNode(f"{kind}{at}", name or kind, kind, START + timedelta(seconds=at), 1.0, status, "", values)


def turn(index: int, new: str | None, generated: str | None, offset: int | None = None, **more: Any) -> SpanNode:
    attributes = {"TURN_INPUT_TEXT": new, "TURN_OUTPUT_TEXT": generated, "TURN_INPUT_OFFSET": offset, **more}
    known = {key: value for key, value in attributes.items() if value is not None}
    return node("turn", index * 10, TURN_INDEX=index, **known)


def tool(index: int | None, at: int, name: str, **more: Any) -> SpanNode:
    attributes = {"TURN_INDEX": index, "TOOL_NAME": name, "TOOL_RESULT": f"{name} result", **more}
    return node("tool", at, **{key: value for key, value in attributes.items() if value is not None})


def told(found: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in found]


ROOT = node("trajectory", INPUT_MESSAGES=said(("user", "hi")))


def test_new_input_without_tools_between_is_a_user_message() -> None:
    turns = [turn(0, "<p>hi", "hello"), turn(1, "<p>and now?", "bye", INPUT_MESSAGES=said(("user", "and now?")))]
    assert told(conversation.messages(ROOT, turns, [])) == [
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "and now?"),
        ("assistant", "bye"),
    ]
    turns[1].attributes.pop(semconv.INPUT_MESSAGES)
    assert told(conversation.messages(ROOT, turns, []))[2] == ("user", "<p>and now?")


def test_new_input_after_tools_is_their_results_and_not_said_twice() -> None:
    turns = [turn(0, "hi", "wait"), turn(1, "<tool>a result", "done", INPUT_MESSAGES=said(("user", "a result")))]
    found = conversation.messages(ROOT, turns, [tool(0, 1, "a"), tool(0, 2, "b")])
    assert told(found) == [
        ("user", "hi"),
        ("assistant", "wait"),
        ("tool", "a result"),
        ("tool", "b result"),
        ("assistant", "done"),
    ]
    assert [call.name for call in found[1].tool_calls] == ["a", "b"]


def test_a_tool_without_a_turn_index_belongs_to_the_turn_before_it() -> None:
    turns = [turn(0, "hi", "one"), turn(1, "x", "two")]
    found = conversation.messages(ROOT, turns, [tool(None, 12, "late"), tool(None, 3, "early")])
    assert told(found)[1:] == [
        ("assistant", "one"),
        ("tool", "early result"),
        ("assistant", "two"),
        ("tool", "late result"),
    ]


def test_without_a_root_the_first_turn_says_what_was_asked() -> None:
    turns = [turn(0, "<p>hi", "hello", INPUT_MESSAGES=said(("user", "hi")))]
    assert told(conversation.messages(None, turns, [])) == [("user", "hi"), ("assistant", "hello")]


def test_a_trajectory_without_turns_says_what_its_root_knows() -> None:
    root = node("trajectory", INPUT_MESSAGES=said(("user", "hi")), OUTPUT_MESSAGES=said(("assistant", "hello")))
    assert told(conversation.messages(root, [], [])) == [("user", "hi"), ("assistant", "hello")]


def test_a_prompt_that_was_cut_is_shown_as_it_is() -> None:
    root = node("trajectory", INPUT_MESSAGES='[{"role": "user", "parts": [{"type": "te')
    assert told(conversation.messages(root, [], [])) == [("user", '[{"role": "user", "parts": [{"type": "te')]


def test_messages_in_either_form_and_parts_of_every_kind() -> None:
    parts = [
        {"type": "reasoning", "content": "hm"},
        {"type": "text", "content": "so"},
        {"type": "blob", "mime_type": "image/png"},
        {"type": "tool_call", "id": "1", "name": "f", "arguments": {"a": 1}},
    ]
    openai = {
        "role": "assistant",
        "content": [{"type": "text", "text": "t"}],
        "tool_calls": [{"id": "2", "function": {"name": "g", "arguments": "{}"}}],
    }
    response = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": {"b": 2}}]}
    text = json.dumps([{"role": "assistant", "parts": parts}, openai, response, {"content": "plain"}, 7])
    found = conversation.messages(node("trajectory", INPUT_MESSAGES=text), [], [])
    assert told(found) == [("assistant", "hm\nso\n[blob]"), ("assistant", "t"), ("tool", '{"b": 2}'), ("user", "plain")]
    assert found[0].tool_calls == [ToolCall("1", "f", '{"a": 1}')]
    assert found[1].tool_calls == [ToolCall("2", "g", "{}")]
    assert found[2].tool_call_id == "1"


def test_a_failed_tool_has_an_error_even_if_it_gives_no_reason() -> None:
    failed = tool(0, 1, "a")
    failed.status = "error"
    assert conversation.messages(ROOT, [turn(0, "hi", "x")], [failed])[-1].error == "error"
    failed.status_message = "boom"
    assert conversation.messages(ROOT, [turn(0, "hi", "x")], [failed])[-1].error == "boom"


def test_texts_are_joined_where_nothing_was_rewritten() -> None:
    assert conversation.text([turn(0, "a", "b", 0), turn(1, "c", "d", 7), turn(2, None, "e", 9)]) == "abcde"


def test_a_rewritten_text_is_cut_where_the_tokens_say() -> None:
    first = turn(0, "a", "b", 0, INPUT_TOKENS=3, OUTPUT_TOKENS=2)
    assert conversation.text([first, turn(1, "c", "d", 3)]) == "acd"
    assert conversation.text([first, turn(1, "c", "d", 0)]) == "cd"
    assert conversation.text([first, turn(1, "c", "d", 5)]) == "abcd"
    assert conversation.text([first, turn(1, "c", "d", 4)]) is None
    second = turn(1, "c", "d", 5, INPUT_TOKENS=6, OUTPUT_TOKENS=1)
    assert conversation.text([first, second, turn(2, "e", "f", 6)]) == "abcef"


@pytest.mark.parametrize(
    "turns", [[], [turn(1, "a", "b")], [turn(0, "a", "b"), turn(2, "c", "d")], [turn(0, None, None)]]
)
def test_there_is_no_text_where_parts_are_missing(turns: list[SpanNode]) -> None:
    assert conversation.text(turns) is None
    assert conversation.token_ids(turns) is None


def test_a_turn_that_failed_adds_nothing() -> None:
    failed = turn(1, None, None)
    failed.status = "error"
    ids = {"TURN_INPUT_TOKEN_IDS": pack([1]), "TURN_OUTPUT_TOKEN_IDS": pack([2])}
    assert conversation.text([turn(0, "a", "b"), failed]) == "ab"
    assert conversation.token_ids([turn(0, None, None, 0, **ids), failed]) == [1, 2]


def test_token_ids_follow_the_offsets() -> None:
    def ids(index: int, offset: int, new: list[int], generated: list[int]) -> SpanNode:
        packed = {"TURN_INPUT_TOKEN_IDS": pack(new), "TURN_OUTPUT_TOKEN_IDS": pack(generated)}
        return turn(index, None, None, offset, **packed)

    assert conversation.token_ids([ids(0, 0, [1, 2], [3]), ids(1, 2, [4], [2**32 - 1])]) == [1, 2, 4, 2**32 - 1]
    assert conversation.token_ids([ids(0, 0, [1, 2], [3]), ids(1, 9, [4], [5])]) is None


@pytest.mark.parametrize("packed", [None, 7, "%%%", "AAA", "AAAA", "AQAAAA"])
def test_what_is_no_packed_ids_is_none(packed: object) -> None:
    assert conversation.unpack(packed) is None
