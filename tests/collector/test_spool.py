from __future__ import annotations

import concurrent.futures
import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.collector import decode
from verl_otel.collector.records import Position
from verl_otel.collector.spool import Cursor, SpoolFull, SpoolReader, SpoolWriter, segments

START = Position(0, 0)


def everything(folder: Path, position: Position = START) -> list[tuple[str, bytes]]:
    reader = SpoolReader(folder, position)
    found = []
    while batch := list(reader.read(1 << 20, 1_000)):
        found += [(entry.signal, entry.data) for _, entry in batch]
    return found


@given(
    st.lists(st.tuples(st.sampled_from(segments.SIGNALS), st.binary(max_size=300)), max_size=8), st.integers(0, 3_000)
)
def test_a_cut_segment_gives_the_whole_frames_before_the_cut(frames: list[tuple[str, bytes]], cut: int) -> None:
    encoded = [segments.encode(signal, data, 1, 1) for signal, data in frames]
    buffer = b"".join(encoded)[:cut]
    start, found = 0, []
    while (entry := segments.decode(buffer, start)) is not None:
        found.append((entry.signal, entry.data))
        start = entry.end
    whole, length = 0, 0
    while whole < len(encoded) and length + len(encoded[whole]) <= len(buffer):
        length += len(encoded[whole])
        whole += 1
    assert found == frames[:whole]


def test_readers_follow_a_writer_across_segments(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, segment_bytes=2_000)
    wanted = [("traces", str(number).encode() * 50) for number in range(200)]

    def write() -> None:
        for signal, data in wanted:
            writer.append(signal, data, 1).result(10)

    thread = threading.Thread(target=write)
    thread.start()
    reader = SpoolReader(tmp_path, Position(0, 0))
    found: list[tuple[str, bytes]] = []
    while thread.is_alive() or len(found) < len(wanted):
        found += [(entry.signal, entry.data) for _, entry in reader.read(1_000, 10)]
    thread.join()
    assert found == wanted
    assert len(segments.numbers(tmp_path)) > 3
    assert writer.drop_before(reader.position) > 2
    assert everything(tmp_path, reader.position) == []
    writer.close()


def test_appends_that_come_together_share_a_sync_and_all_are_there(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    futures = [writer.append("logs", str(number).encode(), 1) for number in range(500)]
    places = [future.result(10) for future in futures]
    assert places == sorted(places)
    writer.close()
    assert [data for _, data in everything(tmp_path)] == [str(number).encode() for number in range(500)]


def test_a_full_spool_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=1_000)
    writer.append("traces", b"x" * 900, 1).result(10)
    with pytest.raises(SpoolFull):
        writer.append("traces", b"x" * 900, 1).result(10)
    writer.close()
    assert len(everything(tmp_path)) == 1


def test_a_large_request_is_read_whole(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    large = bytes(range(256)) * (48 << 10)
    writer.append("traces", b"before", 1).result(10)
    writer.append("traces", large, 1).result(10)
    writer.close()
    assert [data for _, data in everything(tmp_path)] == [b"before", large]


def test_a_small_spool_gets_room_again_when_its_reader_is_through(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=10_000)
    reader = SpoolReader(tmp_path, START)
    for _ in range(50):
        place = writer.append("traces", b"x" * 500, 1).result(10)
        assert len(list(reader.read(1 << 20, 1_000))) == 1
        writer.drop_before(reader.position)
    assert reader.position == place
    assert writer.bytes_after(place) == 0
    writer.close()


def test_a_sender_that_gives_up_waiting_stops_nobody(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    assert not any(writer.append("traces", b"x", 1).cancel() for _ in range(100))
    assert writer.append("traces", b"y", 1).result(10)
    writer.close()
    assert len(everything(tmp_path)) == 101


def test_nothing_is_acknowledged_before_the_disk_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(tmp_path)
    synced = threading.Event()
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda handle: (synced.wait(10), real(handle)))
    future = writer.append("traces", b"x", 1)
    assert concurrent.futures.wait([future], 0.2).not_done
    synced.set()
    assert future.result(10)
    writer.close()


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_disk_that_fails_refuses_and_readers_never_see_the_wrong_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    writer = SpoolWriter(tmp_path)
    writer.append("traces", b"before", 1).result(10)
    reader = SpoolReader(tmp_path, START)
    assert [entry.data for _, entry in reader.read(1 << 20, 1_000)] == [b"before"]
    real = getattr(os, call)

    def full(handle: int, *data: bytes) -> int:
        if call == "write":
            real(handle, bytes(data[0])[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    for _ in range(5):
        with pytest.raises(SpoolFull, match="the disk is full"):
            writer.append("traces", b"refused" * 10, 1).result(10)
        # A reader may be quicker than the one who takes it back.
        list(reader.read(1 << 20, 1_000))
    monkeypatch.undo()
    writer.append("traces", b"after", 1).result(10)
    assert [entry.data for _, entry in reader.read(1 << 20, 1_000)] == [b"after"]
    assert len(segments.numbers(tmp_path)) == 2
    assert writer.total_bytes() == sum(file.stat().st_size for file in tmp_path.glob("*.otlp"))
    writer.close()


def test_a_reader_that_knows_more_than_the_disk_kept_goes_on_with_what_is_new(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    place = writer.append("traces", b"x" * 100, 1).result(10)
    writer.close()
    # What a power cut does to what was written but not yet synced
    os.truncate(segments.path(tmp_path, place.segment), 50)
    writer = SpoolWriter(tmp_path)
    assert writer.repaired_bytes == 50
    writer.append("traces", b"y" * 500, 1).result(10)
    assert [data for _, data in everything(tmp_path, place)] == [b"y" * 500]
    writer.close()


def test_damage_within_a_segment_costs_its_rest_and_is_counted(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, segment_bytes=400)
    places = [writer.append("traces", b"x" * 150, 1).result(10) for _ in range(5)]
    writer.close()
    file = segments.path(tmp_path, places[0].segment)
    data = bytearray(file.read_bytes())
    data[places[0].offset + 40] ^= 1
    file.write_bytes(data)
    reader = SpoolReader(tmp_path, START)
    found = [position for position, _ in reader.read(1 << 20, 1_000)]
    lost = [place for place in places if place.segment == places[0].segment][1:]
    assert found == [place for place in places if place not in lost]
    assert reader.skipped_bytes == file.stat().st_size - places[0].offset


def test_pending_is_what_lies_behind_a_place_in_any_segment(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, segment_bytes=400)
    places = [writer.append("logs", b"x" * 150, 1).result(10) for _ in range(6)]
    whole = writer.total_bytes()
    frame = whole // 6
    for count, place in enumerate([START, *places]):
        assert writer.bytes_after(place) == whole - count * frame
        assert SpoolReader(tmp_path, place).pending_bytes() == whole - count * frame
    writer.close()


def test_a_spool_that_was_deleted_begins_behind_the_old_one(tmp_path: Path) -> None:
    first = SpoolWriter(tmp_path / "a")
    place = first.append("traces", b"x", 1).result(10)
    first.close()
    second = SpoolWriter(tmp_path / "b")
    assert second.append("traces", b"y", 1).result(10) >= place > START
    second.close()


def test_a_broken_cursor_file_begins_again_instead_of_failing(tmp_path: Path) -> None:
    cursor = Cursor("sink/one", Position(3, 4), retries=2)
    cursor.save(tmp_path)
    assert Cursor.load(tmp_path, "sink/one").position == Position(3, 4)
    for file in tmp_path.glob("*.cursor.json"):
        file.write_text('{"sink": "sink/one", "position": [1')
    assert Cursor.load(tmp_path, "sink/one").position == Position(0, 0)


@settings(max_examples=300)
@given(st.sampled_from(segments.SIGNALS), st.binary(max_size=200))
def test_bytes_that_are_no_request_raise_only_undecodable(signal: str, data: bytes) -> None:
    try:
        {"traces": decode.spans, "logs": decode.events, "metrics": decode.metrics}[signal](data)
    except decode.Undecodable:
        pass
