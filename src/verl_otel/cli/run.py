"""``verl-otel run -- CMD``: a training under telemetry, with a collector from before its start until all is delivered."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from verl_otel import auto
from verl_otel.cli import collectors
from verl_otel.cli.collectors import CannotStart, Found
from verl_otel.telemetry.settings import disabled

_EPILOG = """examples:
  verl-otel run -- python -m verl.trainer.main_ppo data.train_files=… trainer.project_name=…
  verl-otel run --home /data/otel --config collector.yaml -- bash train.sh
  OTEL_EXPORTER_OTLP_ENDPOINT=http://gateway:4318 verl-otel run -- python train.py

The command runs as it is; its exit code is that of verl-otel run."""
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.25
_SAY_EVERY_S = 3.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="train under telemetry: verl-otel run -- python -m verl.trainer.main_ppo …",
        description="Runs a training command under telemetry. Finds a collector or starts one, and waits for it at the end.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=os.environ.get("VERL_OTEL_HOME") or "./verl-otel-data",
        metavar="DIR",
        help="where everything is kept (VERL_OTEL_HOME; default ./verl-otel-data)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the collector's configuration")
    parser.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=120.0,
        metavar="TIME",
        help="longest wait at the end until every sink has everything (default 120s)",
    )
    parser.add_argument(
        "--no-collector", action="store_true", help="start none; send to the OTLP endpoint as it is set"
    )
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD …", help="the training command")


def run(args: argparse.Namespace) -> int:
    command = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not command:
        _say("nothing to run: verl-otel run -- python -m verl.trainer.main_ppo …")
        return 2
    if shutil.which(command[0]) is None:
        _say(f"{command[0]}: no such command")
        return 127
    if args.config is not None and not args.config.exists():
        _say(f"{args.config}: no such file")
        return 2
    if disabled():
        return _Child(command, dict(os.environ)).wait()
    home = Path(args.home).absolute()
    found = _collector(args, home)
    with tempfile.TemporaryDirectory(prefix="verl-otel-") as folder:
        run_file = Path(folder) / "run.json"
        env = dict(os.environ)
        if found is not None or args.no_collector or os.environ.get(_ENDPOINT):
            env = _environment(home, found, run_file)
        child = _Child(command, env)
        code = child.wait()
        with contextlib.suppress(KeyboardInterrupt):
            started = _read(run_file)
            if started and not started.get("finished"):
                _tell_the_end(started, env, code, child.asked_to_stop)
            _finish(args, home, found, started)
    return code


def _collector(args: argparse.Namespace, home: Path) -> Found | None:
    if os.environ.get(_ENDPOINT):
        _say(f"sending to {os.environ[_ENDPOINT]} ({_ENDPOINT})")
        return None
    if args.no_collector:
        return None
    found = collectors.running(home)
    if found is not None:
        _say(f"collector at {found.http} (already running)")
        return found
    try:
        found = collectors.start(home, args.config.absolute() if args.config else None)
    except CannotStart as error:
        _say(f"{error}. The training runs without telemetry.")
        return None
    _say(f"collector at {found.http}, home {home}")
    return found


def _environment(home: Path, found: Found | None, run_file: Path) -> dict[str, str]:
    env = dict(os.environ)
    env["VERL_OTEL_HOME"] = str(home)
    env["VERL_OTEL_RUN_FILE"] = str(run_file)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [auto.path(), env.get("PYTHONPATH", "")]))
    if found is not None:
        env[_ENDPOINT] = found.http
        env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    return env


class _Child:
    """The training process: signals meant for it are passed on, and it alone decides when it ends."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.asked_to_stop = False
        self._process: subprocess.Popen[bytes] | None = None
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        self._process = subprocess.Popen(command, env=env)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True
        # A Ctrl-C at the terminal has reached the child already: it is in the foreground group, as we are.
        if self._process is not None and not (number == signal.SIGINT and _in_foreground()):
            self._process.send_signal(number)

    def wait(self) -> int:
        """The child's exit code; 128 + n, as a shell has it, when signal n ended it."""
        assert self._process is not None
        code = self._process.wait()
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        return 128 - code if code < 0 else code


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _tell_the_end(started: dict[str, Any], env: dict[str, str], code: int, asked_to_stop: bool) -> None:
    """A training that was killed could not say that it ended; say it for the trackers."""
    from verl_otel.telemetry import events, run, state

    status = "interrupted" if asked_to_stop else "crashed" if code > 128 else "failed"
    known = run.Run(
        **{name: started[name] for name in ("run_id", "attempt", "project", "experiment", "algorithm", "model")}
    )
    os.environ.update({name: env[name] for name in env if name.startswith("OTEL_EXPORTER_OTLP_")})
    os.environ["OTEL_METRICS_EXPORTER"] = "none"
    run.to_env(known)
    state.set_role("launcher")
    events.run_finished(known, status, code)
    state.shutdown(5.0)


def _finish(args: argparse.Namespace, home: Path, found: Found | None, started: dict[str, Any]) -> None:
    """Wait until every sink has everything, then say where to look."""
    if found is not None and found.health:
        left = _drain(found, args.drain_timeout)
        if left is None:
            _say(f"the collector no longer answers; what it took is safe in {home}, and the next one goes on with it")
        elif left:
            text = ", ".join(f"{name} {size} bytes" for name, size in sorted(left.items()))
            _say(
                f"not all was delivered in {args.drain_timeout:.0f}s ({text}); it is safe in {home} for the next collector"
            )
    if started and found is not None:
        run_id = started["run_id"]
        option = "" if Path("verl-otel-data").absolute() == home else f" --home {home}"
        _say(f"run {run_id}: verl-otel runs{option} · verl-otel trajectories --run {run_id}{option}")


def _drain(found: Found, timeout_s: float) -> dict[str, int] | None:
    """What is left undelivered after at most ``timeout_s`` seconds; ``None`` when the collector died."""
    deadline = time.monotonic() + timeout_s
    said = time.monotonic()
    left: dict[str, int] = {}
    if found.process is not None:
        # Ours: its own stop drains it, without waiting for sinks that write at intervals.
        found.process.terminate()
    while time.monotonic() < deadline:
        if found.process is not None and found.process.poll() is not None:
            return {} if found.process.returncode == 0 else left or None
        document = collectors.health(found.health or "")
        if document is not None:
            left = collectors.pending(document)
            if found.process is None and not left:
                return {}
            if left and time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                _say("delivering: " + ", ".join(f"{name} {size >> 10} KiB" for name, size in sorted(left.items())))
        elif found.process is None:
            return None
        time.sleep(_POLL_S)
    if found.process is not None:
        found.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            found.process.wait(10)
    return left


def _read(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write it as 90s or 2m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _say(text: str) -> None:
    # The training's standard output stays its own.
    print(f"verl-otel: {text}", file=sys.stderr, flush=True)
