from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_otel.collector.sinks.base import Counters, SinkContext
from verl_otel.collector.sinks.mlflow import MlflowSink

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("MLFLOW_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow store: making its tables takes seconds, which only one test of a session need pay."""
    home = tmp_path_factory.mktemp("template")
    MlflowSink(MlflowSink.check({}, ""), SinkContext("mlflow", home, home / "state", Counters())).start()
    return home / "mlflow.db"


@pytest.fixture
def make(tmp_path: Path, template: Path) -> Callable[..., MlflowSink]:
    """A started sink over one home, as often as wanted: each is a worker that was started anew."""

    shutil.copy(template, tmp_path / "mlflow.db")

    def started(**config: Any) -> MlflowSink:
        checked = MlflowSink.check(config, "exporters.mlflow")
        sink = MlflowSink(checked, SinkContext("mlflow", tmp_path, tmp_path / "state", Counters()))
        sink.start()
        return sink

    return started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    argv += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=env, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()[-2_000:]
                assert time.monotonic() < deadline
                time.sleep(0.3)
        yield url
    finally:
        os.killpg(process.pid, 9)
        process.wait(20)
