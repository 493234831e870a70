"""Which run, and which launch (attempt) of it, this process belongs to; and the file beside the checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_otel import identity
from verl_otel.telemetry.settings import PREFIX, Settings

CHECKPOINT_FILE = "verl_otel_run.json"
RUN_FILE = "VERL_OTEL_RUN_FILE"


@dataclass(frozen=True, slots=True)
class Run:
    """A run's identity, and the names that go with it on every record."""

    run_id: str
    attempt: int
    project: str = ""
    experiment: str = ""
    algorithm: str = ""
    model: str = ""

    def step(self, step: int) -> identity.SpanId:
        return identity.step_context(self.run_id, self.attempt, step)

    def phase(self, step: int, phase: str, occurrence: int = 0) -> identity.SpanId:
        return identity.phase_context(self.run_id, self.attempt, step, phase, occurrence)

    def trajectory(self, partition: str, uid: str, session: int | str) -> identity.SpanId:
        return identity.trajectory_context(self.run_id, self.attempt, partition, uid, session)


def from_settings(settings: Settings) -> Run | None:
    """The run that the environment names; ``None`` when this process is not part of one (yet)."""
    if not settings.run_id:
        return None
    return Run(
        run_id=settings.run_id,
        attempt=max(1, settings.run_attempt),
        project=settings.project,
        experiment=settings.experiment,
        algorithm=settings.algorithm,
        model=settings.model,
    )


def resolve(settings: Settings, names: Mapping[str, str], checkpoint_dir: Path | None, resumes: bool) -> Run:
    """Settle a new launch's identity and leave it beside the checkpoints.

    A given id wins. Otherwise the run is the one noted beside the checkpoints if verl will resume from them, else a
    new one. ``names`` are the defaults for project, experiment, algorithm and model.
    """
    noted = _read(checkpoint_dir / CHECKPOINT_FILE) if checkpoint_dir else {}
    noted_id = str(noted.get("run_id", ""))
    run_id = settings.run_id or (noted_id if resumes and noted_id else identity.new_run_id())
    last_attempt = int(noted.get("attempt", 0) or 0) if noted_id == run_id else 0
    run = Run(
        run_id=run_id,
        attempt=settings.run_attempt or last_attempt + 1,
        **{
            name: getattr(settings, name) or names.get(name, "")
            for name in ("project", "experiment", "algorithm", "model")
        },
    )
    if checkpoint_dir:
        _write(checkpoint_dir / CHECKPOINT_FILE, {"run_id": run.run_id, "attempt": run.attempt})
    return run


def to_env(run: Run) -> None:
    """Put the identity into the environment, from where Ray's workers inherit it."""
    for name, value in asdict(run).items():
        variable = {"attempt": "RUN_ATTEMPT"}.get(name, name.upper())
        os.environ[PREFIX + variable] = str(value)


def note_for_launcher(run: Run, finished: bool) -> None:
    """Tell ``verl-otel run``, which may outlive this process, what was started and whether it finished by itself."""
    path = os.environ.get(RUN_FILE)
    if path:
        _write(Path(path), {**asdict(run), "finished": finished})


def _read(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)
