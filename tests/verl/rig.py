"""Runs real verl with the example's agent. One run at a time: two would fight for the machine's cores."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples/tool_agent"
VERL_OTEL = [sys.executable, "-m", "verl_otel.cli.main"]
# verl waits for ever when its engine dies.
TIME_LIMIT_S = 420


@dataclass(frozen=True)
class Training:
    """A finished training: where its files are and how it ended."""

    work: Path
    home: Path
    code: int
    log: str

    def scalars(self) -> dict[int, dict[str, float]]:
        """What verl's own file logger wrote: step → key → value."""
        lines = (self.work / "metrics.jsonl").read_text().splitlines()
        return {row["step"]: row["data"] for row in map(json.loads, lines)}

    def ask(self, *command: str) -> Any:
        """What a ``verl-otel`` command answers, as JSON."""
        argv = [*VERL_OTEL, *command, "--home", str(self.home), "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def train(
    work: Path,
    assets: Path,
    *overrides: str,
    launcher: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Training:
    """Train in ``work``. ``launcher`` stands before the training command (``verl-otel run`` by default)."""
    work.mkdir(parents=True, exist_ok=True)
    home = work / "verl-otel-data"
    front = [*VERL_OTEL, "run", "--home", str(home), "--"] if launcher is None else list(launcher)
    command = [*front, str(EXAMPLE / "train.sh"), str(work), *overrides]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("VERL_OTEL_", "OTEL_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    full = {**clean, "ASSETS": str(assets), "PATH": path, "VERL_OTEL_HOME": str(home), **(env or {})}
    log = work / "train.log"
    with _alone(), log.open("wb") as output:
        child = subprocess.Popen(command, env=full, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            _end_group(child.pid)
    return Training(work, home, code, log.read_text(errors="replace"))


@contextmanager
def _alone() -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / "verl-otel-rig.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
