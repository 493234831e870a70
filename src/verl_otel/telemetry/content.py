"""What trajectories say: packing token ids, cutting long text, messages as JSON, decoding piece by piece.

Decoding a sequence in pieces gives, put together, the text that the tokenizer gives for the whole: a piece is decoded
together with the tokens before it, and a character whose bytes are not all there yet waits for the next piece.
"""

from __future__ import annotations

import base64
import json
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_REPLACEMENT = "\ufffd"
# Tokens kept in front of a piece: enough for a character spread over tokens and for word-start markers.
_CONTEXT_TOKENS = 24


def pack_token_ids(ids: Sequence[int]) -> str:
    """Token ids as base64 of little-endian uint32: a string attribute costs 1/1000 of an int array's encoding."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode("ascii")


def unpack_token_ids(text: str) -> list[int]:
    """The reverse of ``pack_token_ids``; raises ``ValueError`` on anything else."""
    packed = array("I")
    packed.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many elements at the start of two lists are equal. O(1) comparisons in C when one starts with the other."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PieceDecoder:
    """Decodes a token sequence piece by piece. Not thread-safe; one per trajectory."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._emitted = 0
        self.held = ""

    def piece(self, ids: Sequence[int]) -> str:
        """The text that ``ids`` add. Incomplete characters at its end stay in ``held`` for the next piece."""
        if not ids:
            return ""
        window = [*self._context, *ids]
        text = self._decode(window)
        new = text[self._emitted :]
        complete = new.rstrip(_REPLACEMENT)
        self.held = new[len(complete) :]
        self._context = window[-_CONTEXT_TOKENS:]
        seen = text if len(self._context) == len(window) else self._decode(self._context)
        self._emitted = len(seen) - len(self.held)
        return complete

    def flush(self) -> str:
        """What is still held, at the end of the sequence."""
        held, self.held = self.held, ""
        self._emitted += len(held)
        return held

    def restart(self, sequence: Sequence[int]) -> None:
        """Go on after ``sequence``: what came before was rewritten."""
        self._context = list(sequence[-_CONTEXT_TOKENS:])
        self._emitted = len(self._decode(self._context)) if self._context else 0
        self.held = ""


def clip(text: str, limit: int) -> tuple[str, bool]:
    """``text`` cut to ``limit`` characters (0: no limit), and whether it was cut."""
    if limit and len(text) > limit:
        return text[:limit], True
    return text, False


def to_json(value: Any) -> str:
    """JSON text of anything: numpy scalars and arrays as numbers and lists, what JSON lacks as its ``str``."""
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    for attribute in ("tolist", "model_dump", "item"):
        method = getattr(value, attribute, None)
        if callable(method):
            return method()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)


def scalar(value: Any) -> Any:
    """A Python bool, int, float or str for a scalar of Python, numpy or torch; ``None`` for anything else."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if getattr(value, "size", None) == 1 or getattr(value, "ndim", None) == 0 or hasattr(value, "numel"):
        item = getattr(value, "item", None)
        try:
            plain = item() if callable(item) else None
        except (TypeError, ValueError, RuntimeError):
            return None
        return plain if isinstance(plain, (bool, int, float, str)) else None
    return None


def genai_messages(messages: Any) -> list[dict[str, Any]]:
    """Chat messages (or one text) in the GenAI conventions' form. Media become references, never bytes."""
    if isinstance(messages, str):
        return [{"role": "user", "parts": [{"type": "text", "content": messages}]}]
    if hasattr(messages, "tolist"):
        messages = messages.tolist()
    return [_genai_message(message) for message in messages]


def _genai_message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        return {"role": "user", "parts": [{"type": "text", "content": str(message)}]}
    if "parts" in message:
        return dict(message)
    role = str(message.get("role", "user"))
    content = message.get("content", "")
    if role == "tool":
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return {"role": role, "parts": [part]}
    parts = _parts(content)
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        parts.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    return {"role": role, "parts": parts}


def _parts(content: Any) -> list[dict[str, Any]]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    parts: list[dict[str, Any]] = []
    for item in content if isinstance(content, (list, tuple)) else [content]:
        if isinstance(item, Mapping) and item.get("type") == "text":
            parts.append({"type": "text", "content": str(item.get("text", ""))})
        elif isinstance(item, Mapping) and item.get("type"):
            kind = str(item["type"])
            uri = item.get(kind)
            reference = uri if isinstance(uri, str) and len(uri) < 2048 and not uri.startswith("data:") else ""
            parts.append({"type": "uri", "modality": kind.removesuffix("_url"), "uri": reference})
        else:
            parts.append({"type": "text", "content": str(item)})
    return parts
