"""``verl-otel run`` and ``doctor``, with real collectors and small trainings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

VERL_OTEL = [sys.executable, "-m", "verl_otel.cli.main"]
CONFIG = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:0"}}}}
exporters: {archive: {}}
extensions: {health_check: {endpoint: "127.0.0.1:0"}}
service:
  extensions: [health_check]
  pipelines:
    traces: {receivers: [otlp], exporters: [archive]}
    metrics: {receivers: [otlp], exporters: [archive]}
    logs: {receivers: [otlp], exporters: [archive]}
"""
TRAINING = """
import sys, time, verl_otel
verl_otel.init(project="p", experiment="e")
with verl_otel.training_step(1), verl_otel.trajectory("a", inputs="hello"):
    pass
verl_otel.track_metric("loss", 0.5, step=1)
"""
ENDS = {"well": "verl_otel.shutdown()", "killed": "time.sleep(2.5); import os; os.kill(os.getpid(), 9)"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "collector.yaml"
    file.write_text(CONFIG)
    return file


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("VERL_OTEL_", "OTEL_"))}
    return {**clean, **more}


def run(home: Path, config: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [*VERL_OTEL, "run", "--home", str(home), "--config", str(config), "--", *command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=90, env=environment(**env))


def ask(home: Path, *command: str) -> list[dict]:
    done = subprocess.run([*VERL_OTEL, *command, "--home", str(home), "--json"], capture_output=True, timeout=60)
    return json.loads(done.stdout)


def collector_pid(home: Path) -> int | None:
    file = home / "collector.json"
    return json.loads(file.read_text())["pid"] if file.exists() else None


def test_a_training_is_in_the_archive_when_run_returns_and_the_collector_is_gone(tmp_path: Path, config: Path) -> None:
    done = run(tmp_path, config, sys.executable, "-c", TRAINING + "print('its own output')\n" + ENDS["well"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "its own output\n"
    (found,) = ask(tmp_path, "runs")
    assert (found["status"], found["steps"], found["trajectories"]) == ("finished", 1, 1)
    assert ask(tmp_path, "metrics", "latest") == [{"step": 1, "key": "loss", "value": 0.5}]
    assert collector_pid(tmp_path) is None


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("true", 0)])
def test_the_exit_code_is_the_trainings_own(tmp_path: Path, config: Path, command: str, code: int) -> None:
    assert run(tmp_path, config, "bash", "-c", command).returncode == code


def test_a_training_that_was_killed_is_shown_as_crashed(tmp_path: Path, config: Path) -> None:
    done = run(tmp_path, config, sys.executable, "-c", TRAINING + ENDS["killed"])
    assert done.returncode == 137
    (found,) = ask(tmp_path, "runs")
    assert (found["status"], found["trajectories"]) == ("crashed", 1)


def test_signals_reach_the_training_and_its_answer_counts(tmp_path: Path, config: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)"
    )
    argv = [*VERL_OTEL, "run", "--home", str(tmp_path), "--config", str(config), "--", sys.executable, "-c", code]
    process = subprocess.Popen(argv, env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 5
    assert process.stderr is not None
    process.stderr.close()


def test_a_collector_that_runs_already_is_used_and_left_running(tmp_path: Path, config: Path) -> None:
    argv = [*VERL_OTEL, "collector", "--home", str(tmp_path), "--config", str(config)]
    collector = subprocess.Popen(argv, env=environment(), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while collector_pid(tmp_path) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        both = [
            subprocess.Popen(
                [*VERL_OTEL, "run", "--home", str(tmp_path), "--", sys.executable, "-c", TRAINING + ENDS["well"]],
                env=environment(),
                stderr=subprocess.DEVNULL,
            )
            for _ in range(2)
        ]
        assert [process.wait(90) for process in both] == [0, 0]
        assert collector.poll() is None
        assert len(ask(tmp_path, "runs")) == 2
        document = json.loads(
            subprocess.run(
                [*VERL_OTEL, "doctor", "--home", str(tmp_path), "--json"],
                capture_output=True,
                timeout=60,
                env=environment(),
            ).stdout
        )
        assert document["ok"] is True
        assert document["endpoint"]["answers"] is True
        assert document["sinks"]["archive"]["pending_bytes"] == 0
        assert document["sinks"]["archive"]["delivered"]["traces"] == 4
    finally:
        collector.terminate()
        collector.wait(60)


def test_without_a_collector_the_training_runs_all_the_same(tmp_path: Path, config: Path) -> None:
    done = run(
        tmp_path, config, sys.executable, "-c", TRAINING + ENDS["well"], VERL_OTEL_COLLECTOR_COMMAND="/bin/false"
    )
    assert done.returncode == 0
    assert "The training runs without telemetry" in done.stderr


def test_a_collector_that_dies_half_way_does_not_stop_the_training(tmp_path: Path, config: Path) -> None:
    home = tmp_path / "home"
    kill = f"import json, os; os.kill(json.load(open({str(home / 'collector.json')!r}))['pid'], 9)\n"
    done = run(home, config, sys.executable, "-c", TRAINING + kill + ENDS["well"], VERL_OTEL_SHUTDOWN_TIMEOUT="1")
    assert done.returncode == 0
    assert "no longer answers" in done.stderr
    # The next collector of this home goes on, with the same place to write to.
    assert run(home, config, sys.executable, "-c", TRAINING + ENDS["well"]).returncode == 0
    assert ask(home, "runs")[0]["status"] == "finished"


def test_an_endpoint_of_the_users_own_is_used_and_nothing_is_started(tmp_path: Path, config: Path) -> None:
    print_it = "import os; print(os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'])"
    done = run(tmp_path, config, sys.executable, "-c", print_it, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert done.stdout == "http://127.0.0.1:9\n"
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "nothing to run"),
        (("--", "no-such-command-at-all"), 127, "no such command"),
        (("--config", "missing.yaml", "--", "true"), 2, "no such file"),
        (("--drain-timeout", "soon", "--", "true"), 2, "is no time"),
    ],
)
def test_a_users_mistake_is_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    argv = [*VERL_OTEL, "run", "--home", str(tmp_path), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_names_a_dead_endpoint_and_a_wrong_setting(tmp_path: Path) -> None:
    env = environment(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", VERL_OTEL_MAX_LENGTH="long")
    done = subprocess.run(
        [*VERL_OTEL, "doctor", "--home", str(tmp_path)], capture_output=True, text=True, timeout=60, env=env
    )
    assert done.returncode == 1
    assert "http://127.0.0.1:9 does not answer" in done.stdout
    assert "VERL_OTEL_MAX_LENGTH" in done.stdout
