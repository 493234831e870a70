"""Finding, starting, sharing and asking a collector, for ``run`` and ``doctor``. Needs nothing that it needs itself."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUBLISHED = "collector.json"
_DOOR = "collector.door"
_USERS = "collector.users"
COMMAND = "VERL_OTEL_COLLECTOR_COMMAND"
_NEEDED = ("aiohttp", "grpc", "pyarrow", "duckdb", "yaml", "rich")
_DOORS = {"GRPC": 4317, "HTTP": 4318, "HEALTH": 13133}
_START_S = 60.0
# For a collector that should be there: one that has died refuses at once, one on a busy machine takes its time.
PATIENCE_S = 10.0
# What runs here is asked directly: a cluster's proxy knows nothing of our loopback.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class Found:
    """A collector that answers: ``http`` is its OTLP/HTTP address, ``health`` that of its health document."""

    http: str
    health: str
    pid: int
    process: subprocess.Popen[bytes] | None = None


class CannotStart(Exception):
    """No collector could be started; the message says why and what to do."""


class Share:
    """A run's hold on the collector of ``home``: one that a run started goes on until the last run has let go of it.

    Files that the runs lock are what they know of each other; a run that is killed lets go all the same.
    """

    def __init__(self, home: Path) -> None:
        """Raises ``CannotStart`` when ``home`` cannot be used."""
        self._home = home
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._users = (home / _USERS).open("a+")
        except OSError as error:
            raise CannotStart(f"cannot use {home}: {error.strerror}") from None

    def take(self, config: Path | None) -> tuple[Found, bool]:
        """The collector of ``home`` and whether it had to be started; raises ``CannotStart``."""
        with self._door():
            _await_stop(self._home)
            found = running(self._home)
            started = found is None
            if found is None:
                found = start(self._home, config)
                self._users.truncate(0)
                self._users.write(str(found.pid))
                self._users.flush()
            _lock(self._users.fileno(), fcntl.LOCK_SH)
        return found, started

    def leave(self) -> bool:
        """Let go; true if the collector was told to stop, because a run had started it and this one was the last."""
        with self._door(), self._users:
            if not _lock(self._users.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
            self._users.seek(0)
            started = self._users.read()
            found = _published(self._home)
            # It must answer: a number left by a collector that was killed may be another process's by now.
            if found is None or started != str(found.pid) or health(found.health, PATIENCE_S) is None:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGTERM)
            return True

    @contextlib.contextmanager
    def _door(self) -> Iterator[None]:
        """One run at a time finds, starts or stops a collector."""
        with (self._home / _DOOR).open("a") as door:
            deadline = time.monotonic() + 2 * _START_S
            while not _lock(door.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB) and time.monotonic() < deadline:
                time.sleep(0.1)
            yield


def _lock(file: int, how: int) -> bool:
    """Whether the file is locked now; also true where a file system has no locks: then every run counts as alone."""
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _published(home: Path) -> Found | None:
    try:
        content = json.loads((home / PUBLISHED).read_text())
        endpoints = content["endpoints"]
        if endpoints["http"] and endpoints["health"]:
            return Found(endpoints["http"], endpoints["health"], int(content["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def running(home: Path) -> Found | None:
    """The collector of ``home``, if one runs and answers."""
    found = _published(home)
    return found if found is not None and health(found.health) is not None else None


def _await_stop(home: Path) -> None:
    """A collector that is stopping takes nothing any more: wait until it has gone."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        found = _published(home)
        document = health(found.health) if found else None
        if document is None or document.get("status") != "stopping":
            return
        time.sleep(0.2)


def health(url: str, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The health document at ``url``, ``None`` if nothing of ours answers there."""
    try:
        with _direct(url, timeout=timeout_s) as response:
            document = json.load(response)
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return document if isinstance(document, dict) and "sinks" in document else None


def spool_end(home: Path) -> tuple[int, int]:
    """The place behind all that the collector has taken so far: a segment's number and an offset in it."""
    files = sorted(file for file in (home / "spool").glob("*.otlp") if file.stem.isdigit())
    try:
        return (int(files[-1].stem), files[-1].stat().st_size) if files else (0, 0)
    except FileNotFoundError:
        # Every sink had it all, and it was deleted just now.
        return (0, 0)


def lacking(home: Path, document: Mapping[str, Any], end: tuple[int, int]) -> dict[str, int]:
    """The sinks of the health document that are not at ``end`` yet, with the bytes that they have pending."""
    found = {}
    for name, sink in document["sinks"].items():
        try:
            cursor = json.loads((home / "spool" / f"{name.replace('/', '%2F')}.cursor.json").read_text())
            position = tuple(cursor["position"])
        except (OSError, ValueError, KeyError):
            position = (0, 0)
        if position < end and sink["pending_bytes"]:
            found[name] = int(sink["pending_bytes"])
    return found


def start(home: Path, config: Path | None) -> Found:
    """Start a collector on ``home`` and wait until it answers; raises ``CannotStart``."""
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
    try:
        with log.open("ab") as output:
            # In a session of its own: a Ctrl-C meant for the training must not end it before the drain.
            process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    except OSError as error:
        raise CannotStart(f"the collector cannot be started: {error}") from None
    deadline = time.monotonic() + _START_S
    try:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise CannotStart(f"the collector ended with {process.returncode}: {_last_line(log)} (see {log})")
            found = running(home)
            if found is not None:
                return Found(found.http, found.health, found.pid, process)
            time.sleep(0.1)
        raise CannotStart(f"the collector did not answer within {_START_S:.0f}s (see {log})")
    except BaseException:
        # Nobody waits for it any more, be it for a Ctrl-C.
        process.terminate()
        raise


def _command() -> list[str]:
    """How to run a collector: as told, here if what it needs is here, else from another environment."""
    told = os.environ.get(COMMAND)
    if told:
        try:
            return shlex.split(told)
        except ValueError as error:
            raise CannotStart(f"{COMMAND}={told!r}: {error}") from None
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
