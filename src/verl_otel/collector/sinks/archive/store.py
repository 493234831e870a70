"""How complete files come into the archive: all of a commit, or none, and never one twice.

A commit is a redo log of one entry. Files are written and fsynced in the staging folder; then ``_commit.json`` is
replaced, which names them and the place in the spool up to which they reach; then they are renamed into the archive.
A crash before the replacement leaves only staged files, which the next start deletes; a crash after it leaves
renames to be done, which the next start does. So a file that a reader has once seen never goes because of a crash.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from verl_otel.collector.archive import layout
from verl_otel.collector.records import Position
from verl_otel.collector.sinks.archive.tables import fsync_path
from verl_otel.collector.sinks.base import Retry

_log = logging.getLogger(__name__)

# A reader in the middle of listing a folder that was exchanged must still find all of its files: see ``exchange``.
_GRACE_S: Final = 60.0


@dataclass(slots=True)
class Commit:
    """What ``_commit.json`` holds. ``add``: staged name and path in the archive; ``remove``: paths in the archive."""

    number: int
    position: Position | None
    add: Sequence[tuple[str, str]] = ()
    remove: Sequence[str] = ()


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, so that a reader lists either all of the old or all of the new.

    False where the system or the file system cannot (NFS, for one).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        return bool(libc.renamex_np(os.fsencode(one), os.fsencode(other), 2) == 0)
    if not hasattr(libc, "renameat2"):
        return False
    at_cwd, swap = -100, 2
    return bool(libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), swap) == 0)


class Store:
    """The archive's folders, for one writer. All methods raise ``OSError`` when the disk does not take it."""

    def __init__(self, home: Path) -> None:
        self.archive = layout.archive_dir(home)
        self.staging = layout.staging_dir(home)
        self.commit = Commit(0, None)
        self._log_path = self.archive / "_commit.json"
        self._lock: IO[bytes] | None = None
        self._names = 0
        self._unsettled = False
        self._old: list[tuple[float, Path]] = []

    def open(self) -> None:
        """Take the archive, finish or undo what a crash left. Raises ``Retry`` while another process has it."""
        self.archive.mkdir(parents=True, exist_ok=True)
        self.staging.mkdir(exist_ok=True)
        lock = open(self.staging / "lock", "ab")  # noqa: SIM115  (held as long as the process lives)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise Retry(f"{self.archive}: another process writes to this archive") from error
        except OSError:
            pass  # a file system without locks: one collector per home is then the user's to see to
        self._lock = lock
        self.commit = self._read()
        self._redo()
        for path in self.staging.iterdir():
            if path.name == "lock":
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def stage(self, suffix: str = ".tmp") -> Path:
        """A new path in the staging folder."""
        self._names += 1
        return self.staging / f"{self.commit.number + 1}-{self._names}{suffix}"

    def put(self, position: Position | None, add: Sequence[tuple[Path, Path]], remove: Sequence[Path] = ()) -> None:
        """Commit staged files ``add`` (staged, final) and take ``remove`` away; all of it reaches to ``position``.

        When this raises, nothing was committed; when it returns, all is, even if the disk did not take the renames:
        then they are done before anything else is.
        """
        self.settle()
        fsync_path(self.staging)
        commit = Commit(
            self.commit.number + 1,
            position,
            [(staged.name, str(final.relative_to(self.archive))) for staged, final in add],
            [str(path.relative_to(self.archive)) for path in remove],
        )
        self._write(commit)
        self.commit = commit
        self._unsettled = True
        try:
            self.settle()
        except OSError as error:
            _log.warning("%s: committed, but not yet visible: %s", self.archive, error)

    def settle(self) -> None:
        """Do the renames of the last commit that are still to be done. Raises ``OSError``."""
        if self._unsettled:
            self._redo()
            self._unsettled = False

    def replace(self, folder: Path, staged: Path, sources: Sequence[Path]) -> None:
        """Put the merged file ``staged`` in ``folder`` in the place of ``sources``, in one step for readers.

        It takes the name of the first source. Some readers (pyarrow, Hadoop) list a folder, then look at each file,
        and pass over what has gone meanwhile: with the old listing they still find all rows, under that name.
        Where the file system cannot exchange folders, the new file comes before the old ones go: a reader may then
        for a moment see rows twice, never too few.
        """
        kept, gone = sources[0], {path.name for path in sources}
        new = self.stage(suffix=".dir")
        try:
            new.mkdir()
            for path in folder.iterdir():
                if path.name not in gone:
                    os.link(path, new / path.name)
            os.link(staged, new / kept.name)
            fsync_path(new)
            swapped = exchange(new, folder)
        except OSError:
            swapped = False
        if not swapped:
            shutil.rmtree(new, ignore_errors=True)
            self.put(self.commit.position, [(staged, kept)], sources[1:])
            return
        fsync_path(folder.parent)
        fsync_path(self.staging)
        staged.unlink()
        self._old.append((time.monotonic() + _GRACE_S, new))

    def sweep(self) -> None:
        """Delete exchanged folders that no reader can be listing any more."""
        now = time.monotonic()
        while self._old and self._old[0][0] <= now:
            shutil.rmtree(self._old.pop(0)[1], ignore_errors=True)

    def _read(self) -> Commit:
        try:
            found = json.loads(self._log_path.read_bytes())
            position = found["position"]
            return Commit(
                int(found["number"]),
                None if position is None else Position(*position),
                [(staged, final) for staged, final in found["add"]],
                list(found["remove"]),
            )
        except FileNotFoundError:
            return Commit(0, None)
        except (ValueError, KeyError, TypeError) as error:
            raise Retry(f"{self._log_path}: not readable ({error}); move {self.archive} away to begin anew") from error

    def _write(self, commit: Commit) -> None:
        temporary = self._log_path.with_suffix(".tmp")
        with open(temporary, "w") as file:
            json.dump(
                {
                    "number": commit.number,
                    "position": commit.position,
                    "add": commit.add,
                    "remove": commit.remove,
                },
                file,
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._log_path)

    def _redo(self) -> None:
        # The log first: a file that came to light without it would be written again after a power cut.
        fsync_path(self.archive)
        folders: set[Path] = set()
        for staged, final in self.commit.add:
            target = self.archive / final
            if not target.parent.is_dir():
                target.parent.mkdir(parents=True)
                folders.update((target.parent.parent, self.archive))
            try:
                os.rename(self.staging / staged, target)
            except FileNotFoundError:
                continue
            folders.add(target.parent)
        for path in self.commit.remove:
            (self.archive / path).unlink(missing_ok=True)
            folders.add((self.archive / path).parent)
        for folder in folders:
            fsync_path(folder)
