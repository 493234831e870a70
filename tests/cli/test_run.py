"""``verl-otel run`` and ``doctor``, with real collectors and small trainings."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
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


@pytest.mark.parametrize("command", ["/bin/false", "/no/such/command", "an 'open quote"])
def test_without_a_collector_the_training_runs_all_the_same(tmp_path: Path, config: Path, command: str) -> None:
    training = [sys.executable, "-c", TRAINING + ENDS["well"]]
    done = run(tmp_path, config, *training, VERL_OTEL_COLLECTOR_COMMAND=command)
    assert done.returncode == 0
    assert "The training runs without telemetry" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_that_cannot_be_does_not_stop_the_training(tmp_path: Path, config: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path / "file/home", config, "bash", "-c", "exit 3")
    assert done.returncode == 3
    assert "The training runs without telemetry" in done.stderr


def test_a_proxy_for_the_world_outside_does_not_stand_between_training_and_collector(
    tmp_path: Path, config: Path
) -> None:
    training = [sys.executable, "-c", TRAINING + ENDS["well"]]
    done = run(tmp_path, config, *training, http_proxy="http://127.0.0.1:9", no_proxy="example.com")
    assert done.returncode == 0, done.stderr
    (found,) = ask(tmp_path, "runs")
    assert (found["status"], found["trajectories"]) == ("finished", 1)


def test_the_collector_that_a_run_started_stays_for_the_runs_that_joined_and_ends_with_the_last(
    tmp_path: Path, config: Path
) -> None:
    """The second run joins, the first ends while it trains; then two more start at the same moment."""
    joined, left = tmp_path / "joined", tmp_path / "left"

    def start(code: str) -> subprocess.Popen[bytes]:
        argv = [*VERL_OTEL, "run", "--home", str(tmp_path), "--config", str(config), "--", sys.executable, "-c", code]
        return subprocess.Popen(argv, env=environment(), stderr=subprocess.DEVNULL)

    def until(file: Path) -> str:
        return f"import pathlib, time\nwhile not pathlib.Path({str(file)!r}).exists(): time.sleep(0.05)\n"

    first = start(until(joined) + TRAINING + ENDS["well"])
    deadline = time.monotonic() + 60
    while collector_pid(tmp_path) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    second = start(f"open({str(joined)!r}, 'w')\n" + until(left) + TRAINING + ENDS["well"])
    assert first.wait(90) == 0
    assert collector_pid(tmp_path) is not None
    left.touch()
    assert second.wait(90) == 0
    assert collector_pid(tmp_path) is None
    both = [start(TRAINING + ENDS["well"]) for _ in range(2)]
    assert [process.wait(90) for process in both] == [0, 0]
    assert collector_pid(tmp_path) is None
    assert [(item["status"], item["trajectories"]) for item in ask(tmp_path, "runs")] == [("finished", 1)] * 4


def test_a_signal_while_it_delivers_means_not_to_wait_and_the_exit_code_stays(tmp_path: Path, config: Path) -> None:
    # A sink that never succeeds would hold the end of the run for two minutes.
    config.write_text(
        CONFIG.replace("archive: {}", "otlp_http: {endpoint: 'http://127.0.0.1:9'}").replace("[archive]", "[otlp_http]")
    )
    code = TRAINING + ENDS["well"] + "\nprint('trained', flush=True)\nsys.exit(4)"
    argv = [*VERL_OTEL, "run", "--home", str(tmp_path), "--config", str(config), "--", sys.executable, "-c", code]
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        process = subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdout is not None
    assert process.stdout.readline() == b"trained\n"
    process.stdout.close()
    pid = collector_pid(tmp_path)
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 4, said.read_text()
    assert pid is not None
    assert collector_pid(tmp_path) == pid, "it goes on delivering"
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while collector_pid(tmp_path) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert collector_pid(tmp_path) is None


def test_a_collector_that_dies_half_way_does_not_stop_the_training(tmp_path: Path, config: Path) -> None:
    home = tmp_path / "home"
    kill = f"import json, os; os.kill(json.load(open({str(home / 'collector.json')!r}))['pid'], 9)\n"
    done = run(home, config, sys.executable, "-c", TRAINING + kill + ENDS["well"], VERL_OTEL_SHUTDOWN_TIMEOUT="1")
    assert done.returncode == 0
    assert "no longer answers" in done.stderr
    # The next collector of this home goes on, with the same place to write to.
    assert run(home, config, sys.executable, "-c", TRAINING + ENDS["well"]).returncode == 0
    assert ask(home, "runs")[0]["status"] == "finished"


@pytest.mark.parametrize("by_option", [True, False])
def test_an_endpoint_of_the_users_own_is_used_and_nothing_is_started(tmp_path: Path, by_option: bool) -> None:
    url = "http://127.0.0.1:9"
    option = ["--endpoint", url] if by_option else []
    env = environment() if by_option else environment(OTEL_EXPORTER_OTLP_ENDPOINT=url)
    print_it = "import os; print(os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'])"
    argv = [*VERL_OTEL, "run", "--home", str(tmp_path), *option, "--", sys.executable, "-c", print_it]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout == f"{url}\n"
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


@pytest.mark.parametrize(
    ("protocol", "answer", "code"),
    # An endpoint that speaks another protocol than the one that is set does not count as answering.
    [
        ("http/protobuf", b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", 0),
        ("grpc", b"", 0),
        ("http/protobuf", b"\0\0\x06\4", 1),
    ],
)
def test_doctor_asks_the_endpoint_in_its_own_protocol_and_past_a_proxy(
    tmp_path: Path, protocol: str, answer: bytes, code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                if answer:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        env = environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.getsockname()[1]}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            http_proxy="http://127.0.0.1:9",
        )
        argv = [*VERL_OTEL, "doctor", "--home", str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
