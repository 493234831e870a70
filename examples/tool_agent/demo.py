"""``make demo``: trains the tool agent under ``verl-otel run``, shows how far it is, and says where to look.

python demo.py WORKDIR [--steps 3]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERL_OTEL = [sys.executable, "-m", "verl_otel.cli.main"]
# verl waits for ever when its engine dies
TIME_LIMIT_S = 900
ASK_EVERY_S = 6.0


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def verl_otel_json(home: Path, *command: str) -> list[dict]:
    done = subprocess.run([*VERL_OTEL, *command, "--home", str(home), "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else []


def make_assets(folder: Path) -> None:
    if not (folder / "val.parquet").exists():
        say("warm start: a tiny model learns to write tool calls (about half a minute)")
    subprocess.run([sys.executable, str(HERE / "assets.py"), str(folder)], check=True, timeout=TIME_LIMIT_S)


def steps_done(metrics: Path) -> int:
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=-1)


def train(work: Path, home: Path, steps: int) -> int:
    """Run the training; progress comes from verl's own file logger and from the archive, while it is being written."""
    metrics = work / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = [*VERL_OTEL, "run", "--home", str(home), "--", str(HERE / "train.sh"), str(work)]
    command += [f"trainer.total_training_steps={steps}"]
    env = dict(os.environ, ASSETS=str(work / "assets"), PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    say(f"training {steps} steps; everything it says goes to {work / 'train.log'}")
    say("Ray, FSDP and vLLM start (about a minute)")
    start = time.monotonic()
    with (work / "train.log").open("wb") as log:
        child = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.PIPE, text=True)
        os.set_blocking(child.stderr.fileno(), False)
        shown = ""
        rolled_out, asked = 0, 0.0
        while child.poll() is None:
            time.sleep(1)
            for line in iter(child.stderr.readline, ""):
                log.write(line.encode())
                if line.startswith("verl-otel:"):
                    print(line, end="", flush=True)
            done = steps_done(metrics)
            # A question to the archive costs a second of a core that the training wants; before step 0 there is nothing.
            if (home / "archive/signal=spans").exists() and time.monotonic() - asked > ASK_EVERY_S:
                rolled_out = len(verl_otel_json(home, "trajectories", "--limit", "0"))
                asked = time.monotonic()
            line = (
                f"step {max(done, 0)} of {steps}, {rolled_out} trajectories so far" if done >= 0 or rolled_out else ""
            )
            if line and line != shown:
                say(f"{line} ({time.monotonic() - start:.0f} s)")
                shown = line
            if time.monotonic() - start > TIME_LIMIT_S:
                child.terminate()
        for line in child.stderr.read().splitlines():
            log.write(line.encode() + b"\n")
            if line.startswith("verl-otel:"):
                print(line, flush=True)
    return child.returncode


def show(work: Path, home: Path, steps: int) -> None:
    """One trajectory as a tree: one with a failed tool call if there is one, else the one with most turns."""
    found = verl_otel_json(home, "trajectories")
    if not found:
        return
    pick = max(found, key=lambda item: (item["tool_errors"] > 0, item["turns"], item["reward"] or 0))
    print()
    subprocess.run([*VERL_OTEL, "show", pick["trace_id"], "--home", str(home)], check=False)
    option = f"--home {os.path.relpath(home)}"
    command = os.path.relpath(Path(sys.executable).parent / "verl-otel")
    mlflow = os.path.relpath(Path(sys.executable).parent / "mlflow")
    print(
        f"""
Where to look:
  {command} runs {option}
  {command} trajectories --step {steps} {option}
  {command} show {pick["trace_id"][:12]} {option}
  {mlflow} server --backend-store-uri sqlite:///{home}/mlflow.db --port 5000     then http://127.0.0.1:5000
"""
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    work = args.workdir.absolute()
    work.mkdir(parents=True, exist_ok=True)
    home = work / "verl-otel-data"
    make_assets(work / "assets")
    code = train(work, home, args.steps)
    if code:
        tail = (work / "train.log").read_text(errors="replace").splitlines()[-25:]
        print("\n".join(re.sub(r"\x1b\[[0-9;]*m", "", line) for line in tail), file=sys.stderr)
        say(f"the training ended with {code}; the whole log is {work / 'train.log'}")
        return code
    show(work, home, args.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
