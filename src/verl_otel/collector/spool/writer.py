"""The one writer of a spool. Requests that arrive together share one ``fdatasync``; an append returns after it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from verl_otel.collector.records import Position
from verl_otel.collector.spool import segments

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
MAX_BYTES = 20 << 30


class SpoolFull(Exception):
    """The spool has no room, or the disk has none: the sender should keep the request and try again later."""


class SpoolLocked(Exception):
    """Another collector writes to this spool."""


class SpoolWriter:
    """Appends requests to segments in ``folder``.

    Args:
        folder: where the segments are.
        max_bytes: how large all segments together may become; beyond it appends are refused.
        segment_bytes: when to begin a new segment.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(folder / "lock")
        self.repaired_bytes = self._open_last()
        self._sizes = {number: segments.path(folder, number).stat().st_size for number in segments.numbers(folder)}
        self._waiting: list[tuple[bytes, Future[Position]]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._rotate_next = False
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._thread.start()

    def _open_last(self) -> int:
        known = segments.numbers(self._folder)
        # An empty spool may be the successor of one that was deleted, while sinks still know how far they were in that
        # one. Numbers that grow with time keep every new place behind every old one.
        self._number = known[-1] if known else int(time.time())
        file = segments.path(self._folder, self._number)
        torn = 0
        if file.exists():
            good = segments.good_length(file)
            torn = file.stat().st_size - good
            if torn:
                logger.warning("spool: cut a torn tail of %d bytes from %s (never acknowledged)", torn, file.name)
                with file.open("r+b") as handle:
                    handle.truncate(good)
                    os.fsync(handle.fileno())
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._offset = os.fstat(self._handle).st_size
        _sync_folder(self._folder)
        return torn

    def append(self, signal: str, data: bytes) -> Future[Position]:
        """Queue a request; the future has the place behind it once it is on disk, or raises ``SpoolFull``."""
        frame = segments.encode(signal, data, time.time_ns())
        future: Future[Position] = Future()
        with self._changed:
            if self._closed:
                future.set_exception(SpoolFull("the collector is stopping"))
            elif self.total_bytes() + len(frame) > self._max_bytes:
                future.set_exception(SpoolFull(f"the spool is at its limit of {self._max_bytes} bytes"))
            else:
                self._waiting.append((frame, future))
                self._changed.notify()
        return future

    def total_bytes(self) -> int:
        """Size of all segments."""
        return sum(self._sizes.values())

    def end(self) -> Position:
        """The place behind all that is on disk."""
        return Position(self._number, self._offset)

    def drop_before(self, position: Position) -> int:
        """Delete whole segments that lie before ``position``; returns how many."""
        dropped = 0
        for number in sorted(self._sizes):
            if number >= position.segment or number >= self._number:
                break
            segments.path(self._folder, number).unlink(missing_ok=True)
            del self._sizes[number]
            dropped += 1
        return dropped

    def close(self) -> None:
        """Write what is queued, then release the spool."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        self._thread.join()
        os.close(self._handle)
        os.close(self._lock_file)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                batch, self._waiting = self._waiting, []
                if not batch and self._closed:
                    return
            self._write(batch)

    def _write(self, batch: list[tuple[bytes, Future[Position]]]) -> None:
        before = self._offset
        try:
            if before >= self._segment_bytes or self._rotate_next:
                self._rotate()
                self._rotate_next = False
                before = 0
            data = b"".join(frame for frame, _ in batch)
            written = 0
            while written < len(data):
                written += os.write(self._handle, memoryview(data)[written:])
            os.fdatasync(self._handle)
        except OSError as error:
            # Nothing of this batch was acknowledged: take it back. A reader may have seen some of it already, so what
            # comes next goes to a new segment and never under that reader's offset.
            os.ftruncate(self._handle, before)
            self._rotate_next = True
            known = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if known else f"cannot write: {error}"
            logger.error("spool: %s; requests are refused until it eases", reason)
            for _, future in batch:
                future.set_exception(SpoolFull(reason))
            return
        self._offset = before + len(data)
        self._sizes[self._number] = self._offset
        position = before
        for frame, future in batch:
            position += len(frame)
            future.set_result(Position(self._number, position))

    def _rotate(self) -> None:
        file = segments.path(self._folder, self._number + 1)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.close(self._handle)
        self._handle, self._number, self._offset = handle, self._number + 1, 0
        self._sizes[self._number] = 0
        _sync_folder(self._folder)


def _lock(file: Path) -> int:
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        message = f"{file.parent} is in use by another collector; stop it, or give this one another home"
        raise SpoolLocked(message) from None
    return handle


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
