"""The sink: rows come to light soon, whole and once, under names that stay in the archive."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.archive.factory import EXACT, Run, archive, resource, sink, small_run
from verl_otel.collector.archive import layout
from verl_otel.collector.archive.encoding import from_text, to_text
from verl_otel.collector.archive.metrics import metrics
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.archive.runs import runs
from verl_otel.collector.records import Batch, EventRecord, MetricPoint, Position, SpanRecord
from verl_otel.collector.sinks.archive import ArchiveSink, store
from verl_otel.collector.sinks.archive.store import Store
from verl_otel.collector.sinks.base import ConfigError, Retry

RUN = "20260101-000000-abc123"


def span_ids(home: Path) -> list[str]:
    """Of all rows that any reader's glob would find."""
    files = [str(path) for path in home.glob("archive/signal=spans/*/*.parquet")]
    return [row for file in files for row in pq.ParquetFile(file).read(["span_id"])["span_id"].to_pylist()]


def one_span(number: int, run_id: str = RUN) -> Batch:
    span = SpanRecord(resource(run_id), "a" * 32, f"{number:016x}", "", "x", 1, 2, {})
    return Batch(Position(0, number), Position(0, number + 1), [span])


def test_the_files_of_an_open_sink_are_read_by_duckdb_and_pandas(tmp_path: Path) -> None:
    run = small_run()
    writer = sink(tmp_path)
    writer.start()
    for batch in run.batches(2):
        writer.deliver(batch)
    assert writer._counters.values["archive.compactions"] > 0
    for signal, records in (("spans", run.spans), ("events", run.events), ("metrics", run.metrics)):
        folder = tmp_path / "archive" / f"signal={signal}"
        assert len(pandas.read_parquet(folder)) == len(records)
        for glob in (f"{folder}/*/*.parquet", f"{tmp_path}/archive/**/*.parquet"):
            found = duckdb.execute(
                "SELECT count(*) FROM read_parquet($1, hive_partitioning = true, union_by_name = true)"
                " WHERE signal = $2 AND run_id = $3 AND run = $3",
                [glob, signal, RUN],
            ).fetchall()
            assert found == [(len(records),)]
    loss = duckdb.execute(
        "SELECT CAST(body->>'$.\"actor/loss\"' AS DOUBLE) FROM read_parquet($1) WHERE name = 'verl.metrics' AND step > 0"
        " ORDER BY step",
        [f"{tmp_path}/archive/signal=events/*/*.parquet"],
    ).fetchall()
    assert loss[0] == (EXACT,)
    assert math.isnan(loss[1][0])
    writer.close(drain=True)


def test_rows_wait_for_their_age_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("verl_otel.collector.sinks.archive.sink.time.monotonic", lambda: now[0])
    writer = sink(tmp_path, flush_interval="5s")
    writer.start()
    writer.deliver(one_span(0))
    writer.tick()
    assert span_ids(tmp_path) == []
    assert writer.committed() == Position(0, 0)
    now[0] += 5
    writer.tick()
    assert len(span_ids(tmp_path)) == 1
    assert writer.committed() == Position(0, 1)


@pytest.mark.parametrize("option", [{"flush_rows": 3}, {"flush_bytes": 1500}])
def test_many_rows_do_not_wait(tmp_path: Path, option: dict[str, int]) -> None:
    writer = sink(tmp_path, flush_interval="1h", **option)
    writer.start()
    writer.deliver(one_span(0))
    assert span_ids(tmp_path) == []
    for number in (1, 2):
        writer.deliver(one_span(number))
    assert len(span_ids(tmp_path)) >= 2


def test_closing_with_drain_writes_what_waits_and_without_leaves_it_to_the_spool(tmp_path: Path) -> None:
    for drain, expected in ((False, 0), (True, 1)):
        writer = sink(tmp_path, flush_interval="1h")
        writer.start()
        writer.deliver(one_span(0))
        writer.close(drain)
        assert len(span_ids(tmp_path)) == expected


def test_a_restart_goes_on_where_the_files_end(tmp_path: Path) -> None:
    writer = sink(tmp_path, flush_interval="1h")
    assert writer.start() is None
    assert writer.committed() is None
    writer.deliver(one_span(0))
    writer.close(drain=True)
    again = sink(tmp_path)
    assert again.start() == Position(0, 1)
    assert again.committed() == Position(0, 1)


def test_batches_without_records_move_the_place_on(tmp_path: Path) -> None:
    writer = sink(tmp_path, flush_interval="1h")
    writer.start()
    writer.deliver(Batch(Position(0, 0), Position(0, 9)))
    assert writer.committed() == Position(0, 9)
    writer.deliver(one_span(9))
    writer.deliver(Batch(Position(0, 10), Position(0, 20)))
    assert writer.committed() == Position(0, 9)


def test_a_batch_that_comes_again_after_a_full_disk_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sink(tmp_path)
    writer.start()
    with monkeypatch.context() as patched:

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr("verl_otel.collector.sinks.archive.tables.fsync_path", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                writer.deliver(one_span(0))
        with pytest.raises(OSError, match="No space"):
            writer.close(drain=True)
        with pytest.raises(Retry, match="another process"):
            sink(tmp_path).start()
        assert [path.name for path in layout.staging_dir(tmp_path).iterdir()] == ["lock"]
    writer.deliver(one_span(0))
    assert len(span_ids(tmp_path)) == 1


def test_a_commit_whose_renames_fail_is_finished_later_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sink(tmp_path)
    writer.start()
    with monkeypatch.context() as patched:

        def refuse(*_: Any) -> None:
            raise PermissionError("no")

        patched.setattr(store.os, "rename", refuse)
        writer.deliver(one_span(0))
        assert span_ids(tmp_path) == []
        with pytest.raises(PermissionError):
            writer.tick()
    writer.tick()
    assert len(span_ids(tmp_path)) == 1


def test_two_writers_do_not_share_an_archive(tmp_path: Path) -> None:
    first = sink(tmp_path)
    first.start()
    with pytest.raises(Retry, match="another process writes"):
        sink(tmp_path).start()
    first.close(drain=True)
    sink(tmp_path).start()


def test_a_broken_commit_file_is_not_guessed_at(tmp_path: Path) -> None:
    archive(tmp_path, small_run(steps=1))
    (tmp_path / "archive" / "_commit.json").write_text("{")
    with pytest.raises(Retry, match=r"_commit\.json: not readable"):
        sink(tmp_path).start()


def test_a_spool_that_begins_anew_does_not_overwrite_files(tmp_path: Path) -> None:
    run = small_run()
    archive(tmp_path, run, run)
    assert len(span_ids(tmp_path)) == 2 * len(run.spans)


# Names and values -----------------------------------------------------------

names = st.one_of(
    st.sampled_from(
        ["..", ".", "../../etc/passwd", "a/b", "run='x' OR 1=1", "ü\n\x00\x1b[31m", "%2e%2e", "~", "a*[b]?"]
    ),
    st.text(min_size=1, max_size=300),
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(run_id=names)
def test_a_run_id_of_any_text_stays_in_the_archive_and_is_found(
    tmp_path_factory: pytest.TempPathFactory, run_id: str
) -> None:
    home = tmp_path_factory.mktemp("home")
    run = Run(run_id)
    run.begin()
    run.step(1, {"k": 1.5})
    archive(home, run)
    inside = set(home.rglob("*.parquet"))
    assert len(inside) == 3
    assert {path.parent.parent.parent for path in inside} == {home / "archive"}
    reader = Reader(home)
    stored = run_id.encode(errors="replace").decode()
    assert reader.run_ids() == [stored]
    assert reader.resolve_run(stored) == stored
    if stored != layout.UNKNOWN_RUN:
        assert [item.run_id for item in runs(reader)] == [stored]
    assert [item.value for item in metrics(reader, stored)] == [1.5]


@given(one=names, other=names)
def test_two_runs_never_share_a_folder(one: str, other: str) -> None:
    folders = [layout.encode_run(name.encode(errors="replace").decode()) for name in (one, other)]
    assert all("/" not in folder and len(os.fsencode(folder)) <= 250 for folder in folders)
    if one.encode(errors="replace") != other.encode(errors="replace"):
        assert folders[0] != folders[1]


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bytes):
        return isinstance(other, dict) and list(other) == ["bytesValue"]
    if isinstance(one, float):
        return isinstance(other, float) and (one == other or (math.isnan(one) and math.isnan(other)))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


@given(value=values)
def test_values_survive_as_json(value: Any) -> None:
    assert _same(value, from_text(to_text(value)))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    attributes=st.dictionaries(
        st.sampled_from(
            [
                "rl.loop.iteration",
                "rl.reward",
                "verl.group.index",
                "verl.partition",
                "verl.span.type",
                "rl.run.id",
                "verl.rank",
                "verl.run.attempt",
                "verl.event.id",
                "other",
            ]
        ),
        values,
    ),
    number=st.integers(),
)
def test_no_record_is_refused_or_holds_up_others(
    tmp_path_factory: pytest.TempPathFactory, attributes: dict[str, Any], number: int
) -> None:
    home = tmp_path_factory.mktemp("home")
    owner = resource(RUN, **{key.replace("-", "."): value for key, value in attributes.items()})
    writer = sink(home)
    writer.start()
    writer.deliver(
        Batch(
            Position(0, 0),
            Position(0, 1),
            [SpanRecord(owner, "", "", "", "\ud800", number, number, attributes)],
            [EventRecord(owner, "", number, attributes, attributes)],
            [MetricPoint(owner, "", "gauge", number, attributes, value=1.0, count=number)],
        )
    )
    writer.close(drain=True)
    assert len(list(home.glob("archive/*/*/*.parquet"))) == 3
    assert writer._counters.values.get("archive.rows_refused", 0) == 0


def test_a_record_that_cannot_be_a_row_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    ring: list[Any] = []
    ring.append(ring)
    writer = sink(tmp_path)
    writer.start()
    bad = SpanRecord(resource(RUN), "a" * 32, "b" * 16, "", "x", 1, 2, {"ring": ring})
    writer.deliver(Batch(Position(0, 0), Position(0, 1), [bad, *one_span(1).spans]))
    assert span_ids(tmp_path) == [f"{1:016x}"]
    assert writer._counters.values["archive.rows_refused"] == 1


# Config ---------------------------------------------------------------------


def test_the_defaults_are_filled_in() -> None:
    checked = ArchiveSink.check({"flush_interval": "500ms"}, "exporters.archive")
    assert (checked["flush_interval"], checked["target_file_bytes"], checked["compaction"]) == (0.5, 2**27, True)
    assert ArchiveSink.check({}, "exporters.archive")["flush_interval"] == 5.0
    assert ArchiveSink.check({"target_file_bytes": "64MiB"}, "exporters.archive")["target_file_bytes"] == 2**26


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"flush_intervall": "1s"}, "exporters.archive.flush_intervall: unknown key; did you mean 'flush_interval'"),
        ({"flush_interval": "soon"}, "exporters.archive.flush_interval: 'soon' is no duration"),
        ({"flush_rows": 0}, "exporters.archive.flush_rows: must be more than 0"),
        ({"flush_bytes": "much"}, "exporters.archive.flush_bytes: 'much' is no size"),
        ({"compaction": "yes"}, "must be true or false"),
    ],
)
def test_a_mistake_in_the_config_is_told_with_its_place(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ArchiveSink.check(config, "exporters.archive")


# Crashes --------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def crash_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A box: before the n-th step on the file system from now on the process "ends"."""
    left = [10**9]

    def counted(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return original(*args, **kwargs)

        return call

    for name in ("rename", "replace", "link", "fsync", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(store, "exchange", counted(store.exchange))
    yield left
    left[0] = 10**9


def _work(home: Path, batches: list[Batch]) -> None:
    """What the pipeline does: start, deliver from where the sink says, close."""
    writer = sink(home)
    try:
        begin = writer.start() or Position(0, 0)
        for batch in batches:
            if batch.start >= begin:
                writer.deliver(batch)
        writer.close(drain=True)
    except Crash:
        writer._store.close()
        raise


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_crash_at_any_step_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_after: list[int], can_exchange: bool
) -> None:
    monkeypatch.setattr("verl_otel.collector.sinks.archive.compaction._FAN_IN", 3)
    if not can_exchange:
        monkeypatch.setattr(store, "exchange", lambda *_: False)
    batches = [one_span(number) for number in range(4)]
    crashes = 0
    for step in range(10**6):
        home = tmp_path / str(step)
        home.mkdir()
        crash_after[0] = step
        try:
            _work(home, batches)
            ended = True
        except Crash:
            ended = False
            crashes += 1
        crash_after[0] = 10**9
        if can_exchange:
            seen = span_ids(home)
            assert len(seen) == len(set(seen)), f"seen twice after a crash at step {step}"
        _work(home, batches)
        assert sorted(span_ids(home)) == [f"{number:016x}" for number in range(4)], f"crash at step {step}"
        assert [path.name for path in layout.staging_dir(home).iterdir() if path.is_file()] == ["lock"]
        if ended:
            break
    assert crashes > 30


def test_the_commit_file_names_the_place_and_the_files(tmp_path: Path) -> None:
    archive(tmp_path, small_run(steps=1))
    found = json.loads((tmp_path / "archive" / "_commit.json").read_text())
    assert found["position"][0] == 0
    assert {final.split("/")[0] for _, final in found["add"]} == {"signal=spans", "signal=events", "signal=metrics"}


def test_a_file_system_without_locks_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(store.fcntl, "flock", unsupported)
    opened = Store(tmp_path)
    opened.open()
    opened.close()
