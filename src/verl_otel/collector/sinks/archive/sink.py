"""The sink ``archive``: rows wait in memory for a few seconds, then come into the archive as Parquet files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from verl_otel.collector.archive import layout
from verl_otel.collector.records import Batch, Position
from verl_otel.collector.sinks.archive import compaction, tables
from verl_otel.collector.sinks.archive.config import check
from verl_otel.collector.sinks.archive.rows import Row, Rows
from verl_otel.collector.sinks.archive.store import Store
from verl_otel.collector.sinks.base import SinkContext

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record")

# What a row takes beside its texts, about, in memory.
_ROW_BYTES: Final = 400
_IDLE_S: Final = 600.0


class ArchiveSink:
    """Parquet files by run and signal, each row exactly once; see ``store`` for how and ``layout`` for where."""

    wants = frozenset({"spans", "events", "metrics"})

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        return check(config, path)

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self._config = config
        self._counters = context.counters
        self._home = context.home
        self._store = Store(context.home)
        self._rows = Rows()
        self._buffer: dict[tuple[str, str], list[Row]] = {}
        self._count = 0
        self._bytes = 0
        self._since: float | None = None
        self._first: Position | None = None
        self._last: tuple[Position, Position] | None = None
        self._committed: Position | None = None
        self._sizes: dict[Path, dict[Path, int]] = {}
        self._changed: dict[Path, float] = {}

    def start(self) -> Position | None:
        self._store.open()
        now = time.monotonic()
        for signal in layout.SIGNALS:
            for folder in layout.run_dirs(self._home, signal).values():
                self._scan(folder)
                self._changed[folder] = now
        self._committed = self._store.commit.position
        return self._committed

    def deliver(self, batch: Batch) -> None:
        place = (batch.start, batch.end)
        # After a flush that failed the worker brings the batch again, whose rows are waiting already.
        if place != self._last:
            self._take(batch)
            self._last = place
        self._flush_if_due()
        self._maintain()

    def tick(self) -> None:
        self._flush_if_due()
        self._maintain()

    def committed(self) -> Position | None:
        return self._first if self._committed is None else self._committed

    def close(self, drain: bool) -> None:
        if drain:
            # What fails here is tried again: until then the archive stays this process's.
            self._flush()
            self._store.settle()
        self._store.close()

    def _take(self, batch: Batch) -> None:
        self._add("spans", batch.spans, self._rows.span)
        self._add("events", batch.events, self._rows.event)
        self._add("metrics", batch.metrics, self._rows.metric)
        if self._first is None:
            self._first = batch.start
        if self._count == 0:
            self._committed = batch.end
        elif self._since is None:
            self._since = time.monotonic()

    def _add(self, signal: str, records: Iterable[_Record], make: Callable[[_Record], Row]) -> None:
        for record in records:
            try:
                row = make(record)
            except Exception:
                # One record that cannot be a row must not hold up all that comes after it.
                self._counters.add("archive.rows_refused")
                _log.exception("a record of %s cannot be archived", signal)
                continue
            self._buffer.setdefault((signal, row[0]), []).append(row)
            self._count += 1
            self._bytes += _ROW_BYTES + sum(len(value) for value in row if type(value) is str)

    def _flush_if_due(self) -> None:
        self._store.settle()
        if self._since is None:
            return
        due = (
            time.monotonic() - self._since >= self._config["flush_interval"]
            or self._count >= self._config["flush_rows"]
            or self._bytes >= self._config["flush_bytes"]
        )
        if due:
            self._flush()

    def _flush(self) -> None:
        if self._count == 0 or self._last is None:
            return
        assert self._first is not None
        start, end = self._committed or self._first, self._last[1]
        name = layout.Part(start, end, self._store.commit.number + 1).name
        added: list[tuple[Path, Path]] = []
        try:
            for (signal, run_id), rows in self._buffer.items():
                staged = self._store.stage()
                folder = layout.signal_dir(self._home, signal) / f"run={layout.encode_run(run_id)}"
                added.append((staged, folder / name))
                tables.write(staged, signal, rows)
            sizes = {final: staged.stat().st_size for staged, final in added}
            self._store.put(end, added)
        except OSError:
            for staged, _ in added:
                staged.unlink(missing_ok=True)
            raise
        self._committed = end
        self._counters.add("archive.rows", self._count)
        self._counters.add("archive.files", len(added))
        self._counters.add("archive.bytes", sum(sizes.values()))
        self._buffer, self._count, self._bytes, self._since = {}, 0, 0, None
        for final, size in sizes.items():
            self._sizes.setdefault(final.parent, {})[final] = size
            self._changed[final.parent] = time.monotonic()

    def _scan(self, folder: Path) -> None:
        self._sizes[folder] = {path: path.stat().st_size for path in layout.part_files(folder)}

    def _maintain(self) -> None:
        """Merge files of one folder at most, so that a call stays short."""
        self._store.sweep()
        if not self._config["compaction"]:
            return
        now = time.monotonic()
        for folder, changed in list(self._changed.items()):
            idle = now - changed >= _IDLE_S
            chosen = compaction.choose(self._sizes[folder], self._config["target_file_bytes"], idle)
            if chosen:
                self._merge(folder, chosen)
                return
            if idle:
                del self._changed[folder]

    def _merge(self, folder: Path, chosen: list[Path]) -> None:
        staged = self._store.stage()
        signal = folder.parent.name.partition("=")[2]
        try:
            tables.merge(staged, signal, chosen)
            self._store.replace(folder, staged, chosen)
            self._counters.add("archive.compactions")
        except Exception:
            # The rows are safe in the small files; merging waits until the run grows again.
            _log.exception("%s: small files could not be merged", folder)
            self._counters.add("archive.compactions_failed")
            self._changed.pop(folder, None)
            staged.unlink(missing_ok=True)
        self._scan(folder)
