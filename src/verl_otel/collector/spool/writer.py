"""The one writer of a spool. Requests that arrive together share one ``fdatasync``; an append returns after it."""

from __future__ import annotations

import contextlib
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
# A disk that is slower than the senders must not fill the memory: beyond this much unwritten, appends are refused.
_MAX_WAITING_BYTES = 256 << 20


class SpoolFull(Exception):
    """The spool has no room, or the disk has none: the sender should keep the request and try again later."""


class SpoolLocked(Exception):
    """Another collector writes to this spool."""


class SpoolWriter:
    """Appends requests to segments in ``folder``; its methods may be called from any thread.

    Args:
        folder: where the segments are.
        max_bytes: how large all segments together may become; beyond it appends are refused.
        segment_bytes: when to begin a new segment.

    Raises:
        SpoolLocked: another process writes there.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self.max_bytes = max_bytes
        # Room comes back a segment at a time: a small spool needs small ones, or a full one would stay full.
        self._segment_bytes = min(segment_bytes, max_bytes // 8)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(folder / "lock")
        # Guards all that follows; the file itself is only the writing thread's.
        self._changed = threading.Condition()
        self._waiting: list[tuple[bytes, Future[Position]]] = []
        self._waiting_bytes = 0
        self._short = False
        self._make_room = False
        self._closed = False
        known = segments.numbers(folder)
        self.repaired_bytes = _cut_torn_tail(segments.path(folder, known[-1])) if known else 0
        self._sizes = {number: segments.path(folder, number).stat().st_size for number in known}
        # Each start begins a new segment: after a power cut a sink may know places behind what the disk kept, and
        # nothing new may come to lie under those. An empty spool may be the successor of one that was deleted while
        # sinks still know how far they were in it; numbers that grow with time keep new places behind old ones.
        self._number = known[-1] + 1 if known else int(time.time())
        self._handle = self._create(self._number)
        self._offset = 0
        self._spoiled = False
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._thread.start()

    def append(self, signal: str, data: bytes, items: int) -> Future[Position]:
        """Queue a request of ``items`` items; the future has the place behind it once it is on disk, or ``SpoolFull``."""
        frame = segments.encode(signal, data, items, time.time_ns())
        future: Future[Position] = Future()
        # A sender that goes away cancels its wait; the request is written all the same.
        future.set_running_or_notify_cancel()
        with self._changed:
            refusal = self._refusal(len(frame))
            if refusal is None:
                self._waiting.append((frame, future))
                self._waiting_bytes += len(frame)
                self._changed.notify()
        if refusal is not None:
            future.set_exception(refusal)
        return future

    def total_bytes(self) -> int:
        """Size of all segments."""
        with self._changed:
            return sum(self._sizes.values())

    def bytes_after(self, position: Position) -> int:
        """How much lies on disk behind ``position``."""
        with self._changed:
            sizes = {number: size for number, size in self._sizes.items() if number >= position.segment}
        if position.segment in sizes:
            sizes[position.segment] = max(0, sizes[position.segment] - position.offset)
        return sum(sizes.values())

    def drop_before(self, position: Position) -> int:
        """Delete whole segments that lie before ``position``; returns how many."""
        with self._changed:
            # A sink that has read a segment to its end stands there until there is more.
            ends = [Position(number, size) for number, size in self._sizes.items() if number < self._number]
            behind = [end.segment for end in ends if end <= position]
            for number in behind:
                del self._sizes[number]
            if self._short and position >= (self._number, self._offset) > (self._number, 0):
                # What was refused may never fit beside the current segment: it is to become one that can go.
                self._make_room = True
                self._changed.notify()
        for number in behind:
            segments.path(self._folder, number).unlink(missing_ok=True)
        return len(behind)

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

    def _refusal(self, frame_bytes: int) -> SpoolFull | None:
        if self._closed:
            return SpoolFull("the collector is stopping")
        if sum(self._sizes.values()) + self._waiting_bytes + frame_bytes > self.max_bytes:
            self._short = True
            return SpoolFull(f"the spool is at its limit of {self.max_bytes} bytes")
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            return SpoolFull("the disk does not keep up")
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed and not self._make_room:
                    self._changed.wait()
                batch, self._waiting = self._waiting, []
                closed, make_room = self._closed, self._make_room
                self._make_room = False
            if not batch:
                if closed:
                    return
                if make_room:
                    self._try_to_rotate()
                continue
            try:
                end = self._write(b"".join(frame for frame, _ in batch))
            except (OSError, MemoryError) as error:
                full = getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
                reason = "the disk is full" if full else f"cannot write: {error}"
                logger.error("spool: %s; requests are refused until it eases", reason)
                self._settle(batch, SpoolFull(reason))
            else:
                self._settle(batch, end)

    def _settle(self, batch: list[tuple[bytes, Future[Position]]], outcome: Position | SpoolFull) -> None:
        size = sum(len(frame) for frame, _ in batch)
        with self._changed:
            self._waiting_bytes -= size
            if isinstance(outcome, Position):
                self._sizes[outcome.segment] = self._offset = outcome.offset
        for frame, future in reversed(batch):
            if isinstance(outcome, Position):
                future.set_result(outcome)
                outcome = Position(outcome.segment, outcome.offset - len(frame))
            else:
                future.set_exception(outcome)

    def _write(self, data: bytes) -> Position:
        """Put ``data`` on disk as a whole and return the place behind it; raises ``OSError`` when nothing was kept."""
        if self._spoiled or self._offset >= self._segment_bytes:
            self._rotate()
        try:
            written = 0
            while written < len(data):
                written += os.write(self._handle, memoryview(data)[written:])
            os.fdatasync(self._handle)
        except OSError:
            # Nothing of this was acknowledged: take it back. A reader may have seen some of it already, so what comes
            # next goes to a new segment and never under that reader's place.
            self._spoiled = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self._offset)
            raise
        return Position(self._number, self._offset + len(data))

    def _try_to_rotate(self) -> None:
        try:
            self._rotate()
        except OSError as error:
            # It is asked for again with the next clean-up.
            logger.error("spool: no new segment: %s", error)

    def _rotate(self) -> None:
        handle = self._create(self._number + 1)
        os.close(self._handle)
        with self._changed:
            if self._offset == 0:
                # A full disk must not leave an empty segment for every attempt.
                self._sizes.pop(self._number, None)
                segments.path(self._folder, self._number).unlink(missing_ok=True)
            self._handle, self._number, self._offset, self._spoiled = handle, self._number + 1, 0, False
            self._short = False

    def _create(self, number: int) -> int:
        handle = os.open(segments.path(self._folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # Otherwise a power cut may take the new file's name, and with it all that was acknowledged in it.
            _sync_folder(self._folder)
        except OSError:
            os.close(handle)
            raise
        with self._changed:
            self._sizes[number] = 0
        return handle


def _cut_torn_tail(file: Path) -> int:
    good = segments.good_length(file)
    torn = file.stat().st_size - good
    if torn:
        logger.warning("spool: cut a torn tail of %d bytes from %s (it was never acknowledged)", torn, file.name)
        with file.open("r+b") as handle:
            handle.truncate(good)
            os.fsync(handle.fileno())
    return torn


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
