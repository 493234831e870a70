"""Small files become big ones, and nobody who reads meanwhile sees a row twice or misses one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.archive.factory import Run, resource, sink, small_run
from verl_otel.collector.archive import layout
from verl_otel.collector.archive.metrics import metrics
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.records import Batch, Position, SpanRecord
from verl_otel.collector.sinks.archive import compaction, store, tables

RUN = "20260101-000000-abc123"
MIB = 1024 * 1024
ROOT = Path(__file__).parents[2]


def part(number: int) -> Path:
    return Path(layout.Part(Position(0, number), Position(0, number + 1), number).name)


def test_files_of_like_size_are_merged_when_there_are_enough() -> None:
    sizes = {part(number): 1000 for number in range(15)}
    assert compaction.choose(sizes, 128 * MIB) == []
    sizes[part(15)] = 1000
    sizes[part(16)] = 5 * MIB
    assert compaction.choose(sizes, 128 * MIB) == [part(number) for number in range(16)]


def test_a_merged_file_stays_within_the_target_and_is_then_final() -> None:
    sizes = {part(number): 15 * MIB for number in range(16)}
    assert len(compaction.choose(sizes, 128 * MIB)) == 8
    assert compaction.choose({part(number): 64 * MIB for number in range(50)}, 128 * MIB) == []


def test_an_idle_runs_few_files_are_merged() -> None:
    sizes = {part(0): 100, part(1): 5 * MIB, part(2): 100 * MIB}
    assert compaction.choose(sizes, 128 * MIB) == []
    assert compaction.choose(sizes, 128 * MIB, idle=True) == [part(0), part(1)]
    assert compaction.choose({part(0): 100}, 128 * MIB, idle=True) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_run_of_many_flushes_leaves_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(store, "exchange", lambda *_: False)
    run = small_run(RUN)
    writer = sink(tmp_path)
    writer.start()
    for batch in run.batches(1):
        writer.deliver(batch)
    writer.close(drain=True)
    for name, records in (("spans", run.spans), ("events", run.events), ("metrics", run.metrics)):
        files = layout.part_files(layout.signal_dir(tmp_path, name) / f"run={RUN}")
        assert len(files) <= 16
        assert sum(pq.ParquetFile(file).metadata.num_rows for file in files) == len(records)
    assert len(metrics(Reader(tmp_path), RUN)) == 16


def test_a_listing_from_before_a_merge_finds_all_rows_or_none(tmp_path: Path) -> None:
    """What pyarrow and Hadoop do: list, then look at each file, and pass over those that have gone."""
    batches = list(small_run(RUN).batches(1))
    writer = sink(tmp_path)
    writer.start()
    for batch in batches[:15]:
        writer.deliver(batch)
    listed = layout.part_files(layout.signal_dir(tmp_path, "spans") / f"run={RUN}")
    writer.deliver(batches[15])
    left = [path for path in listed if path.exists()]
    assert len(left) == 1
    assert pq.ParquetFile(left[0]).metadata.num_rows == 16


def test_compaction_can_be_switched_off(tmp_path: Path) -> None:
    run = small_run(RUN)
    writer = sink(tmp_path, compaction=False)
    writer.start()
    for batch in run.batches(1):
        writer.deliver(batch)
    assert len(layout.part_files(layout.signal_dir(tmp_path, "spans") / f"run={RUN}")) == len(run.spans)


def test_an_exchanged_folder_stays_until_no_reader_can_be_listing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(store.time, "monotonic", lambda: now[0])
    run = small_run(RUN)
    writer = sink(tmp_path)
    writer.start()
    for batch in list(run.batches(1))[:16]:
        writer.deliver(batch)
    staging = layout.staging_dir(tmp_path)
    for now[0] in (0.0, 59.0):
        writer.tick()
        assert any(path.is_dir() for path in staging.iterdir())
    now[0] = 61.0
    writer.tick()
    assert not any(path.is_dir() for path in staging.iterdir())


def test_a_failed_merge_leaves_the_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise ValueError("broken")

    monkeypatch.setattr(tables, "merge", broken)
    run = small_run(RUN)
    writer = sink(tmp_path)
    writer.start()
    for batch in list(run.batches(1))[:20]:
        writer.deliver(batch)
    files = layout.part_files(layout.signal_dir(tmp_path, "spans") / f"run={RUN}")
    assert len(files) == 20
    assert writer._counters.values["archive.compactions_failed"] >= 1


def test_files_of_an_older_version_are_merged_with_nulls(tmp_path: Path) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    row = tuple(1 if kind.equals("int64") else None for kind in tables.SCHEMAS["spans"].types)
    tables.write(new, "spans", [row])
    pq.write_table(pq.read_table(new).drop_columns(["phase"]), old)
    tables.merge(tmp_path / "merged.parquet", "spans", [old, new])
    merged = pq.read_table(tmp_path / "merged.parquet")
    assert merged.schema.equals(tables.SCHEMAS["spans"])
    assert merged.num_rows == 2


READER = """
import json, sys, duckdb, pyarrow.parquet as pq
folder, stop = sys.argv[1:3]
from pathlib import Path
seen, stale = [], 0
print("ready", flush=True)
while True:
    last = Path(stop).exists()
    for read in ("duckdb", "arrow"):
        while True:
            try:
                if read == "duckdb":
                    ids = [r[0] for r in duckdb.execute(f"SELECT span_id FROM '{folder}/*/*.parquet'").fetchall()]
                else:
                    ids = pq.read_table(folder, columns=["span_id"])["span_id"].to_pylist()
                break
            except (duckdb.IOException, FileNotFoundError):
                stale += 1
        seen.append((len(ids), len(set(ids))))
    if last:
        break
print(json.dumps([seen, stale]))
"""


def test_readers_of_the_bare_files_see_each_row_once_while_files_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_FAN_IN", 3)
    folder = layout.signal_dir(tmp_path, "spans")
    writer = sink(tmp_path)
    writer.start()
    writer.deliver(_span(0))
    stop = tmp_path / "stop"
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(folder), str(stop)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in range(1, 100):
        writer.deliver(_span(number))
    stop.touch()
    seen, _ = json.loads(process.communicate(timeout=60)[0])
    counts = [total for total, _ in seen]
    assert all(total == distinct for total, distinct in seen), "a row was seen twice"
    assert counts == sorted(counts), "a row that was there went missing"
    assert counts[-1] == 100
    assert len(set(counts)) > 3, "the reader did not read while the sink wrote"
    assert writer._counters.values["archive.compactions"] > 25


def test_the_commands_ask_again_when_files_were_merged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sink(tmp_path)
    writer.start()
    for number in range(15):
        writer.deliver(_span(number))
    listings = []
    listed = Reader._files

    def merge_after_the_listing(self: Reader, signal: str, runs: object) -> list[str]:
        files = listed(self, signal, None)
        listings.append(files)
        if len(listings) == 1:
            writer.deliver(_span(15))
        return files

    monkeypatch.setattr(Reader, "_files", merge_after_the_listing)
    assert Reader(tmp_path).query("SELECT count(*) FROM {spans}") == [(16,)]
    assert [len(files) for files in listings] == [15, 1]


def _span(number: int) -> Batch:
    span = SpanRecord(resource(RUN), "a" * 32, f"{number:016x}", "", "x", 1, 2, {})
    return Batch(Position(0, number), Position(0, number + 1), [span])


WRITER = """
import sys
from pathlib import Path
from tests.archive.factory import sink, small_run
from verl_otel.collector.records import Position
from verl_otel.collector.sinks.archive import compaction
compaction._FAN_IN = 3
writer = sink(Path(sys.argv[1]))
begin = writer.start() or Position(0, 0)
print("ready", flush=True)
for batch in small_run(steps=12).batches(3):
    if batch.start >= begin:
        writer.deliver(batch)
writer.close(drain=True)
print("done", flush=True)
"""


def test_kill_9_at_random_moments_loses_and_repeats_nothing(tmp_path: Path) -> None:
    kills = 4
    for kill in [True] * kills + [False]:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if kill:
            time.sleep(random.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
        told = process.communicate(timeout=60)[0]
    assert told == "done\n"
    run: Run = small_run(steps=12)
    for name, records in (("spans", run.spans), ("events", run.events), ("metrics", run.metrics)):
        files = layout.part_files(layout.signal_dir(tmp_path, name) / f"run={RUN}")
        assert sum(pq.ParquetFile(file).metadata.num_rows for file in files) == len(records)
        if name == "spans":
            ids = [item for file in files for item in pq.read_table(file)["span_id"].to_pylist()]
            assert len(set(ids)) == len(run.spans)
