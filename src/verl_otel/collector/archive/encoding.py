"""Attribute and body values as JSON text, and back.

NaN and the infinities are written as ``NaN``, ``Infinity`` and ``-Infinity``: DuckDB's and Python's JSON (and Spark's
by default) read them, and a float comes back bit for bit. Bytes are ``{"bytesValue": "<base64>"}``.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any


def _other(value: object) -> object:
    if isinstance(value, bytes):
        return {"bytesValue": b64encode(value).decode()}
    if hasattr(value, "items"):
        return dict(value.items())
    return list(value) if hasattr(value, "__iter__") else str(value)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_other).encode


def to_text(value: Any) -> str:
    """``value`` as JSON on one line. Raises what ``json`` raises for a value that contains itself."""
    return _encode(value)


def from_text(text: str | None) -> Any:
    """What ``to_text`` was given (tuples as lists, bytes as their map); ``None`` for ``None``."""
    return None if text is None else json.loads(text)
