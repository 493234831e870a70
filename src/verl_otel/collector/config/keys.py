"""Reading a mapping strictly: unknown keys and wrong values become errors with a path and what to do instead."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

from verl_otel.collector.sinks.base import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?")
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Problems:
    """What is wrong in a file, collected so that all of it is said at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, path: str, message: str) -> None:
        self.lines.append(f"{path}: {message}")

    def raise_first(self) -> None:
        """Raise the first of them as a ``ConfigError``, the way a sink's ``check`` answers."""
        if self.lines:
            path, _, message = self.lines[0].partition(": ")
            raise ConfigError(path, message)

    def mapping(self, node: Any, path: str, known: Iterable[str]) -> dict[str, Any]:
        """``node`` as a mapping (nothing is an empty one) whose keys are all ``known``."""
        if node is None:
            return {}
        if not isinstance(node, Mapping):
            self.add(path, f"must be a mapping, not {type(node).__name__}")
            return {}
        names = list(known)
        for key in node:
            if key not in names:
                self.unknown(f"{path}.{key}" if path else str(key), str(key), names)
        return {str(key): value for key, value in node.items()}

    def unknown(self, path: str, key: str, names: Iterable[str]) -> None:
        close = difflib.get_close_matches(key, names := list(names), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(names))}"
        self.add(path, f"unknown key; {hint}")

    def names(self, node: Any, path: str, known: Iterable[str], what: str) -> list[str]:
        """A list of names that are all ``known``."""
        if not isinstance(node, list) or not node or not all(isinstance(item, str) for item in node):
            self.add(path, f"must be a list of {what}")
            return []
        names = list(known)
        for item in node:
            if item not in names:
                close = difflib.get_close_matches(item, names, n=1)
                self.add(
                    path,
                    f"{what.rstrip('s')} {item!r} is not configured"
                    + (f"; did you mean {close[0]!r}?" if close else ""),
                )
        return list(node)

    def duration(self, node: Any, path: str, default: float) -> float:
        """Seconds of ``5s``, ``100ms``, ``1m30s`` or ``0``."""
        if node is None:
            return default
        text = str(node).strip()
        parts = _DURATION.findall(text)
        if text == "0":
            return 0.0
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.add(path, f"{node!r} is no duration; write it as 5s, 100ms or 1m30s")
            return default
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)

    def flag(self, node: Any, path: str, default: bool = False) -> bool:
        """``true`` or ``false``, also as the text that an environment variable gives."""
        if node is None:
            return default
        value = {"true": True, "false": False}.get(str(node).lower())
        if value is None:
            self.add(path, f"must be true or false, not {node!r}")
        return bool(value)

    def choice(self, node: Any, path: str, known: Iterable[str], default: str) -> str:
        """One of the ``known`` words."""
        text = default if node is None else str(node)
        if text not in (names := list(known)):
            close = difflib.get_close_matches(text, names, n=1)
            self.add(
                path, f"{text!r} is none of {', '.join(names)}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
        return text

    def size(self, node: Any, path: str, default: int) -> int:
        """Bytes of ``512MiB``, ``20GiB`` or a plain number."""
        if node is None:
            return default
        match = _SIZE.fullmatch(str(node).strip())
        if not match:
            self.add(path, f"{node!r} is no size; write it as 512MiB, 20GiB or a number of bytes")
            return default
        return int(match[1]) * _BYTES[match[2] or "B"]

    def endpoint(self, node: Any, path: str, insecure: bool) -> str:
        """``host:port``; only loopback unless ``insecure_listen`` says otherwise."""
        text = str(node or "")
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65_535:
            self.add(path, f"{text!r} is no address; write it as 127.0.0.1:4318 (port 0 takes a free one)")
            return text
        if not insecure and not _loopback(host.strip("[]")):
            self.add(
                path,
                f"{text!r} listens beyond this machine without TLS or a token: use 127.0.0.1, "
                "or say `insecure_listen: true` beside it if the network is yours alone",
            )
        return text


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
