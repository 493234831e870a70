from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

from tests.telemetry.receiver import Receiver
from verl_otel.telemetry import guard
from verl_otel.telemetry.outlet import Outlet


class Recorder:
    """An exporter that fails until ``works`` is set."""

    def __init__(self) -> None:
        self.works = threading.Event()
        self.got: list[int] = []

    def export(self, batch):
        if not self.works.is_set():
            return type("Result", (), {"name": "FAILURE"})
        self.got += batch
        return type("Result", (), {"name": "SUCCESS"})

    def shutdown(self) -> None:
        pass


def outlet(exporter: Recorder, capacity: int = 10_000, retry_for_s: float = 60) -> Outlet:
    return Outlet("things", lambda: exporter, interval_s=0.05, capacity=capacity, retry_for_s=retry_for_s)


def test_a_batch_that_was_not_taken_is_sent_again_and_order_is_kept() -> None:
    exporter = Recorder()
    out = outlet(exporter)
    for item in range(2_000):
        out.put(item)
    assert not out.flush(0.3)
    exporter.works.set()
    assert out.flush(10)
    assert exporter.got == list(range(2_000))


def test_what_does_not_fit_is_dropped_and_counted_and_put_never_blocks() -> None:
    exporter = Recorder()
    out = outlet(exporter, capacity=100)
    before = guard.counts().get("dropped.things", 0)
    start = time.monotonic()
    for item in range(5_000):
        out.put(item)
    assert time.monotonic() - start < 2
    exporter.works.set()
    assert out.flush(10)
    dropped = guard.counts()["dropped.things"] - before
    assert dropped + len(exporter.got) == 5_000
    assert dropped > 0


def test_large_items_are_bounded_by_their_text() -> None:
    out = Outlet("texts", Recorder, interval_s=0.05, capacity=10_000, retry_for_s=60, max_bytes=100_000)
    out.put(SimpleNamespace(attributes={}))
    assert not out.flush(0.3)
    before = guard.counts().get("dropped.texts", 0)
    for _ in range(50):
        out.put(SimpleNamespace(attributes={"text": "x" * 10_000, "number": 1}))
    assert guard.counts()["dropped.texts"] - before == 40
    out.close(0.1)


def test_close_waits_no_longer_than_it_is_told() -> None:
    out = outlet(Recorder())
    out.put(1)
    start = time.monotonic()
    assert not out.close(0.3)
    assert time.monotonic() - start < 3


def test_a_forked_child_sends_only_its_own() -> None:
    exporter = Recorder()
    exporter.works.set()
    out = outlet(exporter)
    out.put("parent")
    child = os.fork()
    if child == 0:
        out.put("child")
        ok = out.flush(5) and exporter.got == ["child"]
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert out.flush(5)
    assert exporter.got == ["parent"]
    assert os.waitstatus_to_exitcode(status) == 0


PROGRAM = """
import verl_otel
verl_otel.init(project="p")
with verl_otel.training_step(1):
    pass
"""


def test_a_process_that_ends_without_a_word_still_sends(endpoint: Receiver) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], timeout=60, check=True)
    assert [span.name for span in endpoint.spans] == ["training_step"]


def test_a_missing_endpoint_costs_the_process_a_bounded_time_and_one_line(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("VERL_OTEL_SHUTDOWN_TIMEOUT", "1")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + "\nimport time; time.sleep(2)"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert "endpoint does not take data" in lines[0]


def test_an_endpoint_that_answers_errors_gets_everything_later(endpoint: Receiver, caplog) -> None:
    import verl_otel
    from verl_otel.telemetry import state

    endpoint.status = 503
    os.environ["VERL_OTEL_FLUSH_INTERVAL"] = "0.1"
    verl_otel.init(project="p")
    with caplog.at_level(logging.WARNING):
        with verl_otel.training_step(1):
            pass
        time.sleep(0.5)
        assert endpoint.spans == []
        endpoint.status = 200
        assert state.flush(30)
    assert len(endpoint.of_type("step")) == 1
