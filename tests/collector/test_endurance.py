"""A sink's process, its supervisor and its cursor outlast errors of every kind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.collector.rig import request
from verl_otel.collector import decode
from verl_otel.collector.config import check
from verl_otel.collector.pipeline import supervisor, worker
from verl_otel.collector.records import Batch, Position
from verl_otel.collector.sinks.base import Reject, Retry, SinkContext
from verl_otel.collector.spool import Cursor, SpoolWriter

NODE = {
    "receivers": {"otlp": {"protocols": {"http": {}}}},
    "exporters": {"console": {"retry_on_failure": {"initial_interval": "10ms"}}},
    "service": {
        "pipelines": {signal: {"receivers": ["otlp"], "exporters": ["console"]} for signal in ("traces", "metrics")}
    },
}


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Scripted:
    """Raises what is in ``errors``, one at a delivery, then takes everything."""

    wants = frozenset({"spans", "metrics"})
    errors: list[BaseException]

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self.taken: list[str] = []
        self.calls: list[float] = []

    def start(self) -> Position | None:
        return None

    def deliver(self, batch: Batch) -> None:
        self.calls.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        self.taken += [span.name for span in batch.spans]

    def tick(self) -> None:
        pass

    def committed(self) -> Position | None:
        return None

    def close(self, drain: bool) -> None:
        pass


def drained(
    home: Path, monkeypatch: pytest.MonkeyPatch, *errors: BaseException, metrics: bytes = b""
) -> tuple[Scripted, Cursor]:
    """A worker that has drained a spool of one request (and ``metrics``) with a sink that raises ``errors`` first."""
    spool = SpoolWriter(home / "spool")
    spool.append("traces", request(1, 2, name="a"), 2).result(10)
    if metrics:
        spool.append("metrics", metrics, decode.count("metrics", decode.parse("metrics", metrics))).result(10)
    spool.close()
    made = Scripted({}, None)  # type: ignore[arg-type]
    made.errors = list(errors)
    config = check(NODE)
    monkeypatch.setattr(worker.registry, "load", lambda kind: lambda config, context: made)
    one = worker.Worker(home, config, config.exporters["console"])
    one.drain()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(one.run()), daemon=True)
    thread.start()
    thread.join(20)
    one.stop()
    assert codes == [0]
    return made, Cursor.load(home / "spool", "console")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("x" * 1_000_000),
        MemoryError(),
        Mute(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        OSError("half \ud800 a character"),
        SystemExit(0),
        asyncio.CancelledError(),
        StopIteration(),
        Retry("soon", -1),
        Retry("soon", float("nan")),
        Retry(""),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_sink_raises_the_batch_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    sink, cursor = drained(tmp_path, monkeypatch, error, error)
    assert sink.taken == ["a", "a"]
    assert (cursor.retries, cursor.rejected, cursor.delivered) == (2, 0, {"traces": 2})
    assert len(cursor.last_error) < 2_000
    assert not cursor.failing


def test_points_without_a_record_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = ExportMetricsServiceRequest()
    metrics = message.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="gauge").gauge.data_points.add(as_int=1)
    metrics.add(name="summary").summary.data_points.add(count=1)
    _, cursor = drained(tmp_path, monkeypatch, metrics=message.SerializeToString())
    assert cursor.delivered == {"traces": 2, "metrics": 1}
    assert cursor.counters == {"metrics.points_of_unsupported_kind": 1}


def test_a_refusal_without_a_text_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class MuteReject(Reject):
        __str__ = Mute.__str__

    _, cursor = drained(tmp_path, monkeypatch, MuteReject("", 2))
    assert (cursor.rejected, cursor.delivered) == (2, {})
    assert json.loads((tmp_path / "dead-letter/console.jsonl").read_text())["records"] == 2


def test_at_once_is_no_pause_and_for_ever_is_too_long_a_one() -> None:
    assert worker._asked(Retry("later", 7), 1) == 7
    assert worker._asked(Retry("sooner than we would", 0.001), 1) == 1
    for nonsense in (0, -1, float("nan"), None):
        assert worker._asked(Retry("at once", nonsense), 1) is None
    for long in (1e14, float("inf")):
        assert worker._asked(Retry("never", long), 1) == 3600
    assert worker._asked(ValueError(), 1) is None


def test_a_destination_that_says_at_once_is_not_asked_as_fast_as_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, _ = drained(tmp_path, monkeypatch, *(Retry("at once", 0) for _ in range(4)))
    assert sink.calls[-1] - sink.calls[0] > 0.3


@pytest.mark.parametrize(
    "change",
    [
        {"delivered": 5},
        {"delivered": {"traces": "many"}},
        {"counters": None},
        {"retries": "2"},
        {"position": [-1, 0]},
        {"position": [1]},
        {"position": "ab"},
        {"last_error": 5},
        {"failing_since": "yesterday"},
    ],
)
def test_a_cursor_with_a_wrong_value_begins_again_and_does_not_fail_later(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    Cursor("one", Position(3, 4), {"traces": 1}).save(tmp_path)
    (file,) = tmp_path.glob("one*")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert Cursor.load(tmp_path, "one") == Cursor("one")


def test_a_cursor_of_another_version_is_read(tmp_path: Path) -> None:
    Cursor("one", Position(3, 4), {"traces": 1}).save(tmp_path)
    (file,) = tmp_path.glob("one*")
    content = json.loads(file.read_text())
    del content["counters"]
    content.update(failing_since=7, of_the_future=[1])
    file.write_text(json.dumps(content))
    assert Cursor.load(tmp_path, "one").position == Position(3, 4)


async def test_a_stop_does_not_wait_for_the_pause_of_a_process_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.3)
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 3600.0)
    process = supervisor.WorkerProcess("one", tmp_path, {})
    # Dies until a while after it was asked to drain
    codes = iter([1, 1, 1, 0])
    starts: list[float] = []

    async def run() -> int:
        starts.append(time.monotonic())
        return next(codes)

    monkeypatch.setattr(process, "_run", run)
    running = asyncio.create_task(process.keep_running())
    await asyncio.sleep(0.45)
    assert len(starts) == 2
    asked = time.monotonic()
    await process.drain()
    await asyncio.wait_for(running, 10)
    assert starts[2] - asked < 0.1
    assert starts[3] - starts[2] >= 0.29
    assert process.restarts == 3
