from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from verl_otel import identity
from verl_otel.telemetry import run
from verl_otel.telemetry.settings import Settings

SEEDED = """
import random
random.seed(42)
before = random.getstate()
import verl_otel
from verl_otel.telemetry import state
verl_otel.init(project="p", run_id="r")
with verl_otel.training_step(1), verl_otel.phase("gen"):
    with verl_otel.trajectory("a", group="g"), verl_otel.turn(inputs="x") as turn:
        turn.set_output("y")
sdk = state.sdk()
print([format(sdk.start_span("s", {}).get_span_context().span_id, "x") for _ in range(4)])
verl_otel.shutdown(timeout_s=3)
assert random.getstate() == before, "the user's random stream was touched"
"""


def test_ids_are_the_same_in_every_process_and_differ_by_what_they_name() -> None:
    one = identity.trajectory_context("run", 1, "train", "uid", 3)
    assert one == identity.trajectory_context("run", 1, "train", "uid", "3")
    others = {
        identity.trajectory_context("run", 2, "train", "uid", 3),
        identity.trajectory_context("run", 1, "val", "uid", 3),
        identity.trajectory_context("run", 1, "train", "uid", 30),
        identity.trajectory_context("run", 1, "train", "uid3", ""),
        identity.step_context("run", 1, 3),
    }
    assert one not in others
    assert len(others) == 5


def test_a_phase_is_in_its_steps_trace() -> None:
    assert identity.phase_context("r", 1, 5, "gen").trace_id == identity.step_context("r", 1, 5).trace_id
    assert identity.phase_context("r", 1, 5, "gen", 1) != identity.phase_context("r", 1, 5, "gen", 0)


def test_processes_seeded_alike_make_different_ids_and_keep_their_random_stream(endpoint) -> None:
    printed = {
        subprocess.run([sys.executable, "-c", SEEDED], capture_output=True, text=True, timeout=60, check=True).stdout
        for _ in range(2)
    }
    assert len(printed) == 2


def test_the_random_stream_is_untouched_when_the_endpoint_is_missing(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("VERL_OTEL_FLUSH_INTERVAL", "0.1")
    subprocess.run([sys.executable, "-c", SEEDED], capture_output=True, text=True, timeout=60, check=True)


def test_a_resumed_run_is_the_same_run_and_the_next_attempt(tmp_path: Path) -> None:
    first = run.resolve(Settings(), {"project": "p"}, tmp_path, resumes=False)
    again = run.resolve(Settings(), {"project": "p"}, tmp_path, resumes=True)
    assert (again.run_id, again.attempt) == (first.run_id, 2)


def test_a_launch_that_does_not_resume_is_a_new_run(tmp_path: Path) -> None:
    first = run.resolve(Settings(), {}, tmp_path, resumes=False)
    other = run.resolve(Settings(), {}, tmp_path, resumes=False)
    assert other.run_id != first.run_id
    assert other.attempt == 1


def test_a_given_run_id_wins_and_counts_its_attempts(tmp_path: Path) -> None:
    for attempt in (1, 2):
        resolved = run.resolve(Settings(run_id="mine"), {}, tmp_path, resumes=False)
        assert (resolved.run_id, resolved.attempt) == ("mine", attempt)
