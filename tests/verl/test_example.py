"""The PyTorch example, where torch is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.verl.rig import VERL_OTEL

EXAMPLE = Path(__file__).parents[2] / "examples/pytorch_loop.py"


def test_the_pytorch_example_shows_its_steps_and_trajectories(tmp_path: Path) -> None:
    home = ["--home", str(tmp_path)]
    subprocess.run([*VERL_OTEL, "run", *home, "--", sys.executable, str(EXAMPLE)], check=True, timeout=180)

    def ask(*command: str) -> list[dict]:
        done = subprocess.run([*VERL_OTEL, *command, *home, "--json"], capture_output=True, check=True, timeout=60)
        return json.loads(done.stdout)

    (run,) = ask("runs")
    assert (run["experiment"], run["status"], run["steps"], run["trajectories"]) == ("pytorch-loop", "finished", 5, 40)
    rows = ask("trajectories", "--limit", "0")
    assert {row["outcome"] for row in rows} == {"trained"}
    assert all(row["advantage"] is not None and row["reward"] in (0.0, 1.0) for row in rows)
    assert {row["key"] for row in ask("metrics", "latest")} == {"critic/score/mean", "actor/loss"}
