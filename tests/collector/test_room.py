"""A spool that was full has room again once every sink has what is in it, however it became full."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from verl_otel.collector.records import Position
from verl_otel.collector.spool import SpoolFull, SpoolReader, SpoolWriter, segments


def caught_up(folder: Path, position: Position) -> Position:
    """Where a sink stands that has delivered everything: behind the last request, as its worker counts."""
    for place, _ in SpoolReader(folder, position).read(1 << 30, 1 << 30):
        position = place
    return position


def room(writer: SpoolWriter, data: bytes, position: Position) -> bool:
    """Whether ``data`` is taken within a second of cleaning up behind ``position``."""
    for _ in range(20):
        writer.drop_before(position)
        try:
            writer.append("traces", data, 1).result(10)
            return True
        except SpoolFull:
            time.sleep(0.05)
    return False


def test_one_large_request_does_not_fill_a_spool_for_ever(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=1_000)
    position = Position(0, 0)
    for _ in range(5):
        assert room(writer, b"x" * 900, position)
        position = caught_up(tmp_path, position)
    writer.close()


def test_a_burst_that_fills_one_segment_does_not_fill_the_spool_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=10_000)
    disk = threading.Event()
    write = writer._write
    monkeypatch.setattr(writer, "_write", lambda data: (disk.wait(10), write(data))[1])
    futures = [writer.append("traces", b"x" * 900, 1) for _ in range(10)]
    disk.set()
    assert [future.result(10) for future in futures]
    with pytest.raises(SpoolFull):
        writer.append("traces", b"x" * 900, 1).result(10)
    assert room(writer, b"x" * 5_000, caught_up(tmp_path, Position(0, 0)))
    writer.close()


def test_a_spool_that_was_full_when_the_collector_stopped_has_room_once_it_is_read(tmp_path: Path) -> None:
    first = SpoolWriter(tmp_path, max_bytes=1_000)
    first.append("traces", b"x" * 900, 1).result(10)
    first.close()
    second = SpoolWriter(tmp_path, max_bytes=1_000)
    with pytest.raises(SpoolFull):
        second.append("traces", b"x" * 900, 1).result(10)
    assert room(second, b"x" * 900, caught_up(tmp_path, Position(0, 0)))
    second.close()


def test_nothing_that_a_sink_still_needs_makes_room(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=10_000)
    writer.append("traces", b"first", 1).result(10)
    position = caught_up(tmp_path, Position(0, 0))
    writer.append("traces", b"x" * 9_900, 1).result(10)
    assert not room(writer, b"x" * 900, position)
    reader = SpoolReader(tmp_path, position)
    assert [len(entry.data) for _, entry in reader.read(1 << 30, 1 << 30)] == [9_900]
    writer.close()


def test_a_spool_at_rest_makes_no_files(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=1_000)
    writer.append("traces", b"x" * 900, 1).result(10)
    position = caught_up(tmp_path, Position(0, 0))
    for _ in range(50):
        writer.drop_before(position)
        time.sleep(0.002)
    assert len(segments.numbers(tmp_path)) <= 2
    writer.close()
