"""How a segment looks: frames of ``magic, signal, length, time, crc32`` and an OTLP request, one after the other.

A frame counts once all of it is there and its checksum fits; what follows the last good frame is a torn tail.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

SIGNALS = ("traces", "metrics", "logs")
_HEADER = struct.Struct("<HBxIQI")
_MAGIC = 0x5056
HEADER_BYTES = _HEADER.size
SUFFIX = ".otlp"


class Entry(NamedTuple):
    """One request of the spool. ``end`` is the offset behind it in its segment; ``received_ns`` is Unix time."""

    signal: str
    data: bytes
    received_ns: int
    end: int


def encode(signal: str, data: bytes, received_ns: int) -> bytes:
    """A frame for one request."""
    head = _HEADER.pack(_MAGIC, SIGNALS.index(signal), len(data), received_ns, 0)
    checksum = zlib.crc32(data, zlib.crc32(head))
    return _HEADER.pack(_MAGIC, SIGNALS.index(signal), len(data), received_ns, checksum) + data


def decode(buffer: bytes | memoryview, start: int, base: int = 0) -> Entry | None:
    """The frame at ``start`` of ``buffer`` (which begins at offset ``base`` of its segment); ``None`` if not whole."""
    if len(buffer) - start < HEADER_BYTES:
        return None
    magic, signal, length, received_ns, checksum = _HEADER.unpack_from(buffer, start)
    if magic != _MAGIC or signal >= len(SIGNALS) or len(buffer) - start - HEADER_BYTES < length:
        return None
    data = bytes(buffer[start + HEADER_BYTES : start + HEADER_BYTES + length])
    head = _HEADER.pack(magic, signal, length, received_ns, 0)
    if zlib.crc32(data, zlib.crc32(head)) != checksum:
        return None
    return Entry(SIGNALS[signal], data, received_ns, base + start + HEADER_BYTES + length)


def path(folder: Path, number: int) -> Path:
    """The file of segment ``number``."""
    return folder / f"{number:012d}{SUFFIX}"


def numbers(folder: Path) -> list[int]:
    """The segments that there are, oldest first."""
    return sorted(int(file.stem) for file in folder.glob(f"*{SUFFIX}") if file.stem.isdigit())


def good_length(file: Path) -> int:
    """How many bytes of a segment are whole frames."""
    offset = 0
    with file.open("rb") as handle:
        while True:
            head = handle.read(HEADER_BYTES)
            if len(head) < HEADER_BYTES:
                return offset
            length = _HEADER.unpack(head)[2]
            if decode(head + handle.read(length), 0) is None:
                return offset
            offset += HEADER_BYTES + length


def frame_bytes(buffer: bytes) -> int:
    """How long the frame at the start of ``buffer`` says it is; 0 if that cannot be told."""
    if len(buffer) < HEADER_BYTES:
        return 0
    magic, _, length, _, _ = _HEADER.unpack_from(buffer)
    return HEADER_BYTES + int(length) if magic == _MAGIC else 0
