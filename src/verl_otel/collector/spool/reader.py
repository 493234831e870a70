"""Reads a spool while it is being written. Several readers, in other processes, share nothing but the files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from verl_otel.collector.records import Position
from verl_otel.collector.spool import segments
from verl_otel.collector.spool.segments import Entry

logger = logging.getLogger(__name__)

_CHUNK = 4 << 20


class SpoolReader:
    """Goes through a spool from ``position`` on; ``skipped_bytes`` counts what could not be read."""

    def __init__(self, folder: Path, position: Position) -> None:
        self._folder = folder
        self.position = position
        self.skipped_bytes = 0

    def read(self, max_bytes: int, max_items: int) -> Iterator[tuple[Position, Entry]]:
        """Whole requests from here on, with the place behind each, until one limit is passed or there is no more."""
        size = items = 0
        while True:
            got = False
            for entry in self._read_segment():
                got = True
                self.position = Position(self.position.segment, entry.end)
                yield self.position, entry
                size, items = size + len(entry.data), items + entry.items
                if size >= max_bytes or items >= max_items:
                    return
            if not got and not self._next_segment():
                return

    def pending_bytes(self) -> int:
        """How much lies behind this place."""
        total = 0
        for number in segments.numbers(self._folder):
            if number >= self.position.segment:
                try:
                    size = segments.path(self._folder, number).stat().st_size
                except FileNotFoundError:
                    continue
                total += max(0, size - (self.position.offset if number == self.position.segment else 0))
        return total

    def _read_segment(self) -> Iterator[Entry]:
        """The whole requests of the next piece of the segment; none where it ends, is torn, or is no more."""
        base = self.position.offset
        try:
            with segments.path(self._folder, self.position.segment).open("rb") as handle:
                handle.seek(base)
                buffer = handle.read(_CHUNK)
                wanted = segments.frame_bytes(buffer)
                if wanted > len(buffer):
                    buffer += handle.read(wanted - len(buffer))
        except FileNotFoundError:
            return
        start = 0
        while (entry := segments.decode(buffer, start, base)) is not None:
            yield entry
            start = entry.end - base

    def _next_segment(self) -> bool:
        """Go to the next segment if there is one: the writer begins it only when the one before is complete."""
        later = [number for number in segments.numbers(self._folder) if number > self.position.segment]
        if not later:
            return False
        # The last frames of the old segment may have come between reading it and seeing the new one.
        if next(self._read_segment(), None) is not None:
            return True
        file = segments.path(self._folder, self.position.segment)
        left = file.stat().st_size - self.position.offset if file.exists() else 0
        if left > 0:
            self.skipped_bytes += left
            logger.error("spool: %s is damaged at %d; skipped %d bytes", file.name, self.position.offset, left)
        self.position = Position(later[0], 0)
        return True
