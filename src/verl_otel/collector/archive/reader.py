"""The archive as DuckDB sees it: which files a question touches, and a retry when files were merged meanwhile."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import duckdb

from verl_otel.collector.archive import layout
from verl_otel.collector.archive.columns import COLUMNS, DUCKDB_TYPES
from verl_otel.collector.archive.model import QueryError, Unreadable

_ATTEMPTS: Final = 5
_MEMORY: Final = "1GB"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAMES_SHOWN: Final = 5


def when(time_ns: int | None) -> datetime | None:
    """Unix nanoseconds as a UTC time (to the microsecond); ``None`` for none, zero and what no calendar has."""
    if not time_ns:
        return None
    try:
        return _EPOCH + timedelta(microseconds=time_ns // 1000)
    except OverflowError:
        return None


class Reader:
    """Reads the archive under ``home`` at any time, also while a collector writes to it.

    Raises ``QueryError`` when ``home`` is not a folder. An archive that is not there yet is an empty one.
    """

    def __init__(self, home: Path) -> None:
        if not home.is_dir():
            raise QueryError(f"{home}: no such folder; give the collector's with --home or VERL_OTEL_HOME")
        self.home = home

    def run_ids(self) -> list[str]:
        """The ids of all runs that have a file, sorted; ``_unknown`` stands for records of no run."""
        names = {name for signal in layout.SIGNALS for name in layout.run_dirs(self.home, signal)}
        return sorted(self._run_id(name) for name in names)

    def resolve_run(self, wanted: str) -> str:
        """A run id from itself, a unique prefix or ``latest`` (the run begun last). Raises ``QueryError``."""
        known = self.run_ids()
        if wanted in known:
            return wanted
        if wanted == "latest":
            begun = self.query(
                "SELECT run_id, min(start_ns) AS began FROM ("
                " SELECT run_id, start_ns FROM {spans} UNION ALL SELECT run_id, time_ns FROM {events})"
                " WHERE run_id <> $unknown GROUP BY run_id ORDER BY began DESC, run_id DESC LIMIT 1",
                {"unknown": layout.UNKNOWN_RUN},
            )
            if not begun:
                raise QueryError(f"{self.home}: no run is in the archive yet")
            return str(begun[0][0])
        matches = [run_id for run_id in known if run_id.startswith(wanted)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise QueryError(f"run {wanted!r} is ambiguous: {_some(matches)}")
        near = difflib.get_close_matches(wanted, known, n=_NAMES_SHOWN, cutoff=0.5)
        advice = f"nearest: {_some(near)}" if near else f"known: {_some(known)}" if known else "it has none yet"
        raise QueryError(f"no run {wanted!r} in {self.home}; {advice}")

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, runs: Sequence[str] | None = None
    ) -> list[tuple[Any, ...]]:
        """Rows of ``sql``, where ``{spans}``, ``{events}`` and ``{metrics}`` are tables of ``runs`` (``None``: all).

        Values go in as ``$name`` parameters only. The tables may hold records twice (a sender that tried again).
        Raises ``Unreadable`` when the files cannot be read.
        """
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            values = dict(parameters or {})
            tables = {}
            for signal in layout.SIGNALS:
                if "{" + signal + "}" in sql:
                    files = self._files(signal, runs)
                    tables[signal] = _table(signal, bool(files))
                    if files:
                        values[f"files_{signal}"] = files
            try:
                return _run(sql.format(**tables), values)
            except (duckdb.IOException, duckdb.InvalidInputException) as problem:
                # Files were merged between the listing and the reading: list again. Old DuckDBs tell this, like a
                # broken file, as invalid input.
                error = problem
        raise Unreadable(f"{layout.archive_dir(self.home)}: cannot be read: {str(error).splitlines()[0]}")

    def _files(self, signal: str, runs: Iterable[str] | None) -> list[str]:
        folders = layout.run_dirs(self.home, signal)
        if runs is not None:
            names = {layout.encode_run(run_id) for run_id in runs}
            folders = {name: folder for name, folder in folders.items() if name in names}
        return [_literal(path) for folder in folders.values() for path in layout.part_files(folder)]

    def _run_id(self, name: str) -> str:
        known = layout.decode_run(name)
        if known is not None:
            return known
        for signal in layout.SIGNALS:
            for path in layout.part_files(layout.run_dirs(self.home, signal).get(name, Path(os.devnull))):
                rows = _run("SELECT run_id FROM read_parquet($file) LIMIT 1", {"file": _literal(path)})
                return str(rows[0][0])
        return name


def _run(sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    # What does not fit in memory must not be spilled into the folder that the user happens to be in.
    with tempfile.TemporaryDirectory(prefix="verl-otel-") as spill:
        options: dict[str, Any] = {"memory_limit": _MEMORY, "temp_directory": spill, "preserve_insertion_order": False}
        with duckdb.connect(config=options) as connection:
            return connection.execute(sql, values).fetchall()


def _table(signal: str, has_files: bool) -> str:
    if has_files:
        return f"read_parquet($files_{signal}, union_by_name = true, hive_partitioning = false)"
    columns = ", ".join(f'NULL::{DUCKDB_TYPES[kind]} AS "{name}"' for name, kind in COLUMNS[signal].items())
    return f"(SELECT {columns} WHERE false)"


def _literal(path: Path) -> str:
    # DuckDB takes every path for a glob.
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(repr(name) for name in names[:_NAMES_SHOWN]) + more
