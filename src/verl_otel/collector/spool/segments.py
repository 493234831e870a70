"""How a segment looks: frames of a header (magic, signal, length, items, time, crc32) and an OTLP request, end to end.

A frame counts once all of it is there and its checksum fits; what follows the last good frame is a torn tail.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

SIGNALS = ("traces", "metrics", "logs")
_HEADER = struct.Struct("<HBxIIQI")
_MAGIC = 0x5057
HEADER_BYTES = _HEADER.size
SUFFIX = ".otlp"


class Entry(NamedTuple):
    """One request of the spool.

    ``items`` counts its spans, points or log records, ``received_ns`` is Unix time, ``end`` the offset behind it.
    """

    signal: str
    data: bytes
    items: int
    received_ns: int
    end: int


def encode(signal: str, data: bytes, items: int, received_ns: int) -> bytes:
    """A frame for one request."""
    fields = (_MAGIC, SIGNALS.index(signal), len(data), items, received_ns)
    return _HEADER.pack(*fields, _checksum(fields, data)) + data


def decode(buffer: bytes, start: int, base: int = 0) -> Entry | None:
    """The frame at ``start`` of ``buffer`` (which begins at offset ``base`` of its segment); ``None`` if not whole."""
    data_start = start + HEADER_BYTES
    if len(buffer) < data_start:
        return None
    *fields, checksum = _HEADER.unpack_from(buffer, start)
    magic, signal, length, items, received_ns = fields
    end = data_start + length
    if magic != _MAGIC or signal >= len(SIGNALS) or len(buffer) < end:
        return None
    data = buffer[data_start:end]
    if _checksum(fields, data) != checksum:
        return None
    return Entry(SIGNALS[signal], data, items, received_ns, base + end)


def _checksum(fields: tuple[int, ...] | list[int], data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_HEADER.pack(*fields, 0)))


def path(folder: Path, number: int) -> Path:
    """The file of segment ``number``."""
    return folder / f"{number:012d}{SUFFIX}"


def numbers(folder: Path) -> list[int]:
    """The segments that there are, oldest first."""
    return sorted(int(file.stem) for file in folder.glob(f"*{SUFFIX}") if file.stem.isdigit())


def good_length(file: Path) -> int:
    """How many bytes at the beginning of a segment are whole frames."""
    offset = 0
    with file.open("rb") as handle:
        while True:
            head = handle.read(HEADER_BYTES)
            size = frame_bytes(head)
            if decode(head + handle.read(max(0, size - len(head))), 0) is None:
                return offset
            offset += size


def frame_bytes(buffer: bytes) -> int:
    """How long the frame at the start of ``buffer`` says it is; 0 if that cannot be told."""
    if len(buffer) < HEADER_BYTES:
        return 0
    magic, _, length, *_ = _HEADER.unpack_from(buffer)
    return HEADER_BYTES + int(length) if magic == _MAGIC else 0
