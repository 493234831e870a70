"""``verl-otel`` itself and ``verl-otel collector``, as a person types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verl_otel import __version__
from verl_otel.collector.config import default_text

CONFIG = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:0"}}}}
exporters: {console: {}}
service: {pipelines: {logs: {receivers: [otlp], exporters: [console]}}}
"""
SCRIPT = [sys.executable, "-m", "verl_otel.cli.main"]


def typed(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCRIPT, *words], capture_output=True, text=True, timeout=40, env={**os.environ, **env})


def test_its_version_and_its_help() -> None:
    assert typed("--version").stdout == f"verl-otel {__version__}\n"
    done = typed("collector", "--help")
    assert done.returncode == 0
    assert "verl-otel collector --config collector.yaml --check" in done.stdout
    assert typed().returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["colector"], "invalid choice: 'colector'"),
        (["collector", "--confg", "x"], "unrecognized arguments"),
        (["collector", "--config", "/no/such.yaml"], "/no/such.yaml: cannot be read: No such file or directory"),
        (["collector", "--home", "/proc/nowhere"], "cannot work in /proc/nowhere"),
    ],
)
def test_a_users_mistake_is_said_without_a_traceback(words: list[str], said: str) -> None:
    done = typed(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_printed_configuration_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "collector.yaml"
    file.write_text(typed("collector", "--print-config").stdout)
    assert file.read_text() == default_text()
    done = typed("collector", "--config", str(file), "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_loads_nothing_of_the_others() -> None:
    code = "import sys; from verl_otel.cli import main; main._parser('collector'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)
    assert not {"grpc", "aiohttp", "duckdb", "pyarrow", "yaml", "mlflow"} & set(done.stdout.split())


def test_a_package_that_is_missing_is_named_with_what_to_install() -> None:
    code = (
        "import sys; sys.modules['aiohttp'] = None; from verl_otel.cli.main import main; sys.exit(main(['collector']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "needs aiohttp, which is not installed: pip install 'verl-otel[collector]'" in done.stderr


def test_the_home_of_the_environment_is_used_and_ctrl_c_ends_it_well(tmp_path: Path) -> None:
    home = tmp_path / "home"
    config = tmp_path / "collector.yaml"
    config.write_text(CONFIG)
    process = subprocess.Popen(
        [*SCRIPT, "collector", "--config", str(config)],
        env={**os.environ, "VERL_OTEL_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    # The sink's process has begun, too.
    while not ((home / "collector.json").exists() and (home / "spool/console.cursor.json").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # A terminal sends it to the whole group, the sinks' processes included.
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
