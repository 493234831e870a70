"""Where the archive's files are: ``<home>/archive/signal=<signal>/run=<name>/part-*.parquet``.

The sink that writes and the queries that read share this page. The partition key is ``run``, not ``run_id``: the
files have a column ``run_id``, and pyarrow refuses a name that is both a column and a folder. What is not complete
lies in ``<home>/.archive-staging``, outside ``archive``, because DuckDB's globs also match dot-files.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from verl_otel.collector.records import Position

SIGNALS: Final = ("spans", "events", "metrics")
UNKNOWN_RUN: Final = "_unknown"

# A folder's name may have 255 bytes; "run=" and the mark of a shortened name are part of it.
_NAME_LIMIT: Final = 200
_SHORTENED: Final = "~"
_PART: Final = re.compile(r"part-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)\.parquet")


def archive_dir(home: Path) -> Path:
    return home / "archive"


def staging_dir(home: Path) -> Path:
    return home / ".archive-staging"


def signal_dir(home: Path, signal: str) -> Path:
    return archive_dir(home) / f"signal={signal}"


def encode_run(run_id: str) -> str:
    """``run_id`` as a part of a folder's name: percent-encoded as Hive does, so it cannot leave the folder.

    A name too long for a file system is cut and ends in ``~`` and a hash; only the column ``run_id`` has the whole.
    """
    name = quote(run_id, safe="", errors="replace").replace("~", "%7E")
    if len(name) <= _NAME_LIMIT:
        return name
    digest = blake2b(run_id.encode(errors="replace"), digest_size=8).hexdigest()
    return re.sub(r"%.?$", "", name[:_NAME_LIMIT]) + _SHORTENED + digest


def decode_run(name: str) -> str | None:
    """The run id that ``encode_run`` made ``name`` of; ``None`` where it was cut."""
    return None if _SHORTENED in name else unquote(name)


class Part(NamedTuple):
    """A file's name. ``start`` to ``end`` is where in the spool its first rows come from (others may have been merged
    into it); ``commit`` keeps names apart when a spool begins anew."""

    start: Position
    end: Position
    commit: int

    @property
    def name(self) -> str:
        places = f"{self.start.segment:08d}-{self.start.offset:012d}-{self.end.segment:08d}-{self.end.offset:012d}"
        return f"part-{places}-{self.commit:08d}.parquet"

    @classmethod
    def parse(cls, name: str) -> Part | None:
        match = _PART.fullmatch(name)
        if match is None:
            return None
        a, b, c, d, commit = map(int, match.groups())
        return cls(Position(a, b), Position(c, d), commit)


def run_dirs(home: Path, signal: str) -> dict[str, Path]:
    """Encoded run name -> folder, for the runs that have files of ``signal``."""
    found: dict[str, Path] = {}
    try:
        entries = list(os.scandir(signal_dir(home, signal)))
    except FileNotFoundError:
        return found
    for entry in entries:
        if entry.name.startswith("run=") and entry.is_dir():
            found[entry.name[len("run=") :]] = Path(entry.path)
    return found


def part_files(folder: Path) -> list[Path]:
    """The complete files of one run and signal, in spool order; empty when the folder is not there."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names) if Part.parse(name) is not None]
