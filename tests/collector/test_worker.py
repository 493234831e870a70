"""How a sink's process treats a sink that misbehaves; the sink is another package's (``plugin/``)."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.collector.rig import Collector, post, request
from verl_otel.collector import decode
from verl_otel.collector.spool import segments


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sink"
    made.mkdir()
    return made


@pytest.fixture
def collector(tmp_path: Path, folder: Path) -> Iterator[Collector]:
    keys = f"{{folder: {str(folder)!r}, retry_on_failure: {{initial_interval: 50ms, max_interval: 20s}}}}"
    with Collector(tmp_path / "home", {"recording": keys}, "shutdown_timeout: 15s") as started:
        yield started


def send(collector: Collector, *names: str) -> None:
    for number, name in enumerate(names, 1):
        assert post(collector.endpoint("http") + "/v1/traces", request(number, name=name))[0] == 200


def said(folder: Path, what: str) -> list[str]:
    file = folder / "said"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [word for line in lines if line[0] == what for word in line[1:]]


def until_said(folder: Path, what: str) -> None:
    deadline = time.monotonic() + 20
    while f'["{what}"' not in ((folder / "said").read_text() if (folder / "said").exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("fault", ["retry", "bug"])
def test_a_batch_comes_again_until_it_is_taken_and_the_status_says_why_it_waits(
    collector: Collector, folder: Path, fault: str
) -> None:
    (folder / fault).touch()
    send(collector, "a", "b")
    status = collector.until(lambda status: status["sinks"]["recording"]["retries"] >= 2)
    sink = status["sinks"]["recording"]
    assert status["status"] == "degraded"
    assert sink["failing_since"] <= time.time()
    assert sink["pending_bytes"] > 0
    assert sink["last_error"] == {"retry": "not now", "bug": "ZeroDivisionError: a bug"}[fault]
    (folder / fault).unlink()
    status = collector.wait_for("recording")
    assert status["status"] == "ok"
    assert status["sinks"]["recording"]["delivered"] == {"traces": 2}
    assert said(folder, "items") == ["a", "b"]
    assert collector.stop() == 0
    assert said(folder, "closed") == ["True"]


def test_what_is_refused_for_good_is_kept_as_it_came_with_the_reason(collector: Collector, folder: Path) -> None:
    until_said(folder, "started")
    (folder / "reject").touch()
    send(collector, "a", "b", "c")
    collector.wait_for("recording")
    (folder / "reject").unlink()
    send(collector, "d")
    sink = collector.wait_for("recording")["sinks"]["recording"]
    assert said(folder, "items") == ["d"]
    assert collector.stop() == 0
    kept = (collector.home / "dead-letter/recording.otlp").read_bytes()
    names, start = [], 0
    while entry := segments.decode(kept, start):
        names += [span.name for span in decode.spans(entry.data)]
        start = entry.end
    assert (names, start) == (["a", "b", "c"], len(kept))
    reasons = [json.loads(line) for line in (collector.home / "dead-letter/recording.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in reasons} == {"never"}
    assert sink["rejected"] == sum(line["records"] for line in reasons) > 0


def test_a_stop_does_not_wait_for_the_pause_of_a_sink_that_is_back(tmp_path: Path, folder: Path) -> None:
    (folder / "retry").touch()
    keys = f"{{folder: {str(folder)!r}, retry_on_failure: {{initial_interval: 40s}}}}"
    with Collector(tmp_path / "home", {"recording": keys}, "shutdown_timeout: 15s") as collector:
        send(collector, "a")
        collector.until(lambda status: status["sinks"]["recording"]["retries"] == 1)
        (folder / "retry").unlink()
        assert collector.stop() == 0
    assert said(folder, "items") == ["a"]


def test_a_stop_that_cannot_drain_says_what_is_left_and_a_second_signal_ends_at_once(
    collector: Collector, folder: Path
) -> None:
    (folder / "hang").touch()
    send(collector, "a")
    until_said(folder, "hangs")
    assert collector.process is not None
    collector.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert collector.process.poll() is None
    began = time.monotonic()
    assert collector.stop() == 1
    assert time.monotonic() - began < 5
    assert "recording" in collector.stderr
    assert "bytes); the next start goes on" in collector.stderr
    assert not (collector.home / "collector.json").exists()
    (folder / "hang").unlink()
    collector.start()
    collector.wait_for("recording")
    assert collector.stop() == 0
    assert said(folder, "items") == ["a"]


def test_a_hanging_sink_ends_with_its_collector_even_when_that_is_killed(collector: Collector, folder: Path) -> None:
    (folder / "hang").touch()
    send(collector, "a")
    until_said(folder, "hangs")
    assert collector.process is not None
    children = psutil.Process(collector.process.pid).children()
    assert len(children) == 1
    collector.process.kill()
    assert not psutil.wait_procs(children, timeout=3)[1]


def test_the_configuration_is_that_of_the_start_whatever_becomes_of_the_file(
    collector: Collector, folder: Path
) -> None:
    Path(f"{collector.home}.yaml").write_text("broken: [")
    assert collector.process is not None
    until_said(folder, "made")
    (worker,) = psutil.Process(collector.process.pid).children()
    worker.kill()
    send(collector, "a")
    collector.wait_for("recording")
    assert said(folder, "items") == ["a"]


def test_a_sink_that_is_given_up_on_loses_nothing_but_its_turn(tmp_path: Path, folder: Path) -> None:
    keys = f"{{folder: {str(folder)!r}, retry_on_failure: {{initial_interval: 50ms, max_elapsed_time: 1s}}}}"
    with Collector(tmp_path / "home", {"recording": keys}) as collector:
        until_said(folder, "made")
        send(collector, "a")
        collector.wait_for("recording")
        (folder / "retry").touch()
        send(collector, "b", "c")
        status = collector.until(lambda status: status["sinks"]["recording"]["rejected"] == 2)
        assert "given up after 1s: not now" in status["sinks"]["recording"]["last_error"]
        assert collector.stop() == 0
    assert said(folder, "items") == ["a"]
    assert (collector.home / "dead-letter/recording.otlp").stat().st_size > 0


def test_a_sink_behind_a_processor_sees_what_that_makes(tmp_path: Path, folder: Path) -> None:
    collector = Collector(tmp_path / "home", {"recording": f"{{folder: {str(folder)!r}}}"})
    file = collector.config
    text = file.read_text().replace(
        "traces: {receivers: [otlp],", "traces: {receivers: [otlp], processors: [resource/tag],"
    )
    actions = "{key: cluster, value: a100, action: upsert}, {key: rl.run.id, action: delete}"
    collector.text = text + f"processors: {{resource/tag: {{attributes: [{actions}]}}}}\n"
    with collector:
        send(collector, "a")
        collector.wait_for("recording")
        assert collector.stop() == 0
    assert said(folder, "resources") == ["{'cluster': 'a100'}"]
