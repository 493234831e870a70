from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.telemetry import content
from verl_otel.telemetry.content import PieceDecoder

# Two families of tokenizers at their hardest: every byte a token (characters spread over up to four tokens), and words
# whose leading space shows only when something comes before.
WORDS = ["▁Hello", "▁world", "!", "▁", "▁a", "b", "▁你", "好"]


def decode_bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def decode_words(ids: list[int]) -> str:
    return "".join(WORDS[i] for i in ids).replace("▁", " ").removeprefix(" ")


def in_pieces(decode, ids: list[int], cuts: list[int]) -> str:
    decoder = PieceDecoder(decode)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [decoder.piece(ids[start:end]) for start, end in itertools.pairwise(edges)]
    return "".join(pieces) + decoder.flush()


@given(st.text(max_size=60), st.lists(st.integers(0, 400), max_size=8))
def test_pieces_put_together_are_the_text_of_the_whole_with_byte_tokens(text: str, cuts: list[int]) -> None:
    ids = list(text.encode("utf-8", errors="replace"))
    assert in_pieces(decode_bytes, ids, cuts) == decode_bytes(ids)


@given(st.binary(max_size=60), st.lists(st.integers(0, 400), max_size=8))
def test_pieces_of_bytes_that_are_no_text_still_add_up(raw: bytes, cuts: list[int]) -> None:
    assert len(in_pieces(decode_bytes, list(raw), cuts)) >= 0


@given(st.lists(st.integers(0, len(WORDS) - 1), max_size=60), st.lists(st.integers(0, 400), max_size=8))
def test_pieces_put_together_are_the_text_of_the_whole_with_word_tokens(ids: list[int], cuts: list[int]) -> None:
    assert in_pieces(decode_words, ids, cuts) == decode_words(ids)


def test_a_character_is_not_split_between_two_turns() -> None:
    first, second = "a你".encode()[:3], "a你".encode()[3:]
    decoder = PieceDecoder(decode_bytes)
    assert decoder.piece(list(first)) == "a"
    assert decoder.held
    assert decoder.piece(list(second)) == "你"


def test_decoding_goes_on_after_a_rewritten_sequence() -> None:
    decoder = PieceDecoder(decode_words)
    decoder.piece([0, 1])
    decoder.restart([0])
    assert decoder.piece([1]) == " world"


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_token_ids_come_back_as_they_were_packed(ids: list[int]) -> None:
    assert content.unpack_token_ids(content.pack_token_ids(ids)) == ids


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=20))
def test_common_prefix_is_the_longest_one(first: list[int], second: list[int]) -> None:
    length = content.common_prefix(first, second)
    assert first[:length] == second[:length]
    assert length == min(len(first), len(second)) or first[length] != second[length]


def test_scalars_of_numpy_become_python_numbers_and_others_none() -> None:
    numpy = pytest.importorskip("numpy")
    assert content.scalar(numpy.float32(0.5)) == 0.5
    assert type(content.scalar(numpy.int64(3))) is int
    assert content.scalar(numpy.array(2.0)) == 2.0
    assert content.scalar(numpy.array([2.0])) == 2.0
    assert content.scalar(numpy.array([1.0, 2.0])) is None
    assert content.scalar({"a": 1}) is None
    assert content.scalar(True) is True


def test_messages_take_the_genai_form_and_media_stay_out() -> None:
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "what"}, {"type": "image", "image": b"\x89PNG" * 100}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    system, user, assistant, tool = content.genai_messages(messages)
    assert system == {"role": "system", "parts": [{"type": "text", "content": "be short"}]}
    assert user["parts"][1] == {"type": "uri", "modality": "image", "uri": ""}
    assert assistant["parts"] == [{"type": "tool_call", "id": "c1", "name": "f", "arguments": "{}"}]
    assert tool["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "4"}]
