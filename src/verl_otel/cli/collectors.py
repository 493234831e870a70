"""Finding, starting and asking a collector, for ``run`` and ``doctor``. Needs nothing that the collector needs."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUBLISHED = "collector.json"
COMMAND = "VERL_OTEL_COLLECTOR_COMMAND"
_NEEDED = ("aiohttp", "grpc", "pyarrow", "duckdb", "yaml", "rich")
_DOORS = {"GRPC": 4317, "HTTP": 4318, "HEALTH": 13133}
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """A collector that answers: ``http`` is its OTLP/HTTP address, ``health`` that of its health document."""

    http: str
    health: str | None
    process: subprocess.Popen[bytes] | None = None


class CannotStart(Exception):
    """No collector could be started; the message says why and what to do."""


def running(home: Path) -> Found | None:
    """The collector of ``home``, if one runs and answers."""
    try:
        endpoints = json.loads((home / PUBLISHED).read_text())["endpoints"]
    except (OSError, ValueError, KeyError):
        return None
    if not endpoints.get("http") or not endpoints.get("health") or health(endpoints["health"]) is None:
        return None
    return Found(endpoints["http"], endpoints["health"])


def health(url: str, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The health document at ``url``, ``None`` if nothing of ours answers there."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            document = json.load(response)
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return document if isinstance(document, dict) and "sinks" in document else None


def pending(document: Mapping[str, Any]) -> dict[str, int]:
    """Bytes that each sink does not have yet, for the sinks that lack some."""
    return {name: sink["pending_bytes"] for name, sink in document["sinks"].items() if sink["pending_bytes"]}


def start(home: Path, config: Path | None) -> Found:
    """Start a collector on ``home`` and wait until it answers; raises ``CannotStart``."""
    home.mkdir(parents=True, exist_ok=True)
    command = [*_command(), "collector", "--home", str(home)]
    if config is not None:
        command += ["--config", str(config)]
    env = dict(os.environ, VERL_OTEL_HOME=str(home))
    # The collector is no part of what it watches.
    env.pop("PYTHONPATH", None)
    for door, port in _DOORS.items():
        if not _free(port):
            env.setdefault(f"VERL_OTEL_{door}_ENDPOINT", "127.0.0.1:0")
    log = home / "collector.log"
    with log.open("ab") as output:
        # In a session of its own: a Ctrl-C meant for the training must not end it before the drain.
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CannotStart(f"the collector ended with {process.returncode}: {_last_line(log)} (see {log})")
        found = running(home)
        if found is not None:
            return Found(found.http, found.health, process)
        time.sleep(0.1)
    process.terminate()
    raise CannotStart(f"the collector did not answer within {_START_S:.0f}s (see {log})")


def _command() -> list[str]:
    """How to run a collector: as told, here if what it needs is here, else from another environment."""
    told = os.environ.get(COMMAND)
    if told:
        return shlex.split(told)
    if all(importlib.util.find_spec(name) for name in _NEEDED):
        return [sys.executable, "-m", "verl_otel.cli.main"]
    here = Path(sys.prefix).resolve()
    paths = [*os.environ.get("PATH", "").split(os.pathsep), str(Path.home() / ".local/bin")]
    for folder in paths:
        candidate = shutil.which("verl-otel", path=folder) if folder else None
        if (
            candidate
            and here not in Path(candidate).resolve().parents
            and here not in Path(candidate).absolute().parents
        ):
            return [candidate]
    raise CannotStart(
        "no collector: install its parts here with pip install 'verl-otel[collector]', or, better, apart from the "
        f"training's packages with pipx install 'verl-otel[all]'; {COMMAND} names one that is elsewhere"
    )


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
