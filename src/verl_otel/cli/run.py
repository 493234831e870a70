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
from verl_otel.cli.collectors import CannotStart, Found, Share
from verl_otel.cli.options import add_home
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
_GONE_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="train under telemetry: verl-otel run -- python -m verl.trainer.main_ppo …",
        description="Runs a training command under telemetry. Finds a collector or starts one, and waits for it at the end.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_home(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the collector's configuration")
    parser.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=120.0,
        metavar="TIME",
        help="longest wait at the end until every sink has everything (default 120s)",
    )
    parser.add_argument("--endpoint", metavar="URL", help=f"send there, and start no collector ({_ENDPOINT})")
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
    if args.endpoint:
        os.environ[_ENDPOINT] = args.endpoint
    home = Path(args.home).absolute()
    share, found = _collector(args, home)
    with tempfile.TemporaryDirectory(prefix="verl-otel-") as folder:
        run_file = Path(folder) / "run.json"
        env = dict(os.environ)
        if found is not None or args.no_collector or os.environ.get(_ENDPOINT):
            env = _environment(home, found, run_file)
        child = _Child(command, env)
        code = child.wait()
        try:
            child.pass_nothing_on()
            started = _read(run_file)
            if started and not started.get("finished"):
                _tell_the_end(started, env, code, child.asked_to_stop)
            _finish(args.drain_timeout, home, share, found, started)
        except KeyboardInterrupt:
            pass
        except Exception as error:
            # Whatever goes wrong with us after the training is not the training's failure.
            _say(f"{type(error).__name__}: {error}")
    return code


def _collector(args: argparse.Namespace, home: Path) -> tuple[Share | None, Found | None]:
    if os.environ.get(_ENDPOINT):
        _say(f"sending to {os.environ[_ENDPOINT]}")
        return None, None
    if args.no_collector:
        return None, None
    try:
        share = Share(home)
        found, started = share.take(args.config.absolute() if args.config else None)
    except (CannotStart, OSError) as error:
        _say(f"{error}. The training runs without telemetry.")
        return None, None
    _say(f"collector at {found.http}, home {home}" if started else f"collector at {found.http} (already running)")
    return share, found


def _environment(home: Path, found: Found | None, run_file: Path) -> dict[str, str]:
    env = dict(os.environ)
    env["VERL_OTEL_HOME"] = str(home)
    env["VERL_OTEL_RUN_FILE"] = str(run_file)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [auto.path(), env.get("PYTHONPATH", "")]))
    if found is not None:
        env[_ENDPOINT] = found.http
        env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
        _around_the_proxy(env)
    return env


def _around_the_proxy(env: dict[str, str]) -> None:
    """A cluster's proxy cannot reach our collector: where one is set, the loopback is named as an exception."""
    if not any(env.get(name) for scheme in ("http", "all") for name in (f"{scheme}_proxy", f"{scheme}_PROXY".upper())):
        return
    known = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if known.strip() != "*":
        names = [name for name in known.split(",") if name]
        env["no_proxy"] = env["NO_PROXY"] = ",".join(names + [name for name in _LOOPBACK if name not in names])


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
        return 128 - code if code < 0 else code

    def pass_nothing_on(self) -> None:
        """From now on a signal is for us: not to wait any longer (``KeyboardInterrupt``)."""
        for number in _PASSED_ON:
            signal.signal(number, signal.default_int_handler)


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


def _finish(timeout_s: float, home: Path, share: Share | None, found: Found | None, started: dict[str, Any]) -> None:
    """Wait until every sink has everything of this run, then say where to look."""
    if share is None or found is None:
        return
    end = collectors.spool_end(home)
    stopping = share.leave()
    left = _drain(home, found, end, stopping, timeout_s)
    if left is None:
        _say(f"the collector no longer answers; what it took is safe in {home}, and the next one goes on with it")
    elif left:
        text = ", ".join(f"{name} {size} bytes" for name, size in sorted(left.items()))
        _say(f"not all was delivered in {timeout_s:.0f}s ({text}); it is safe in {home} for the next collector")
    if started:
        run_id = started["run_id"]
        option = "" if Path("verl-otel-data").absolute() == home else f" --home {home}"
        _say(f"run {run_id}: verl-otel runs{option} · verl-otel trajectories --run {run_id}{option}")
        if (home / "mlflow.db").exists():
            _say(f"MLflow: mlflow server --backend-store-uri sqlite:///{home}/mlflow.db")


def _drain(home: Path, found: Found, end: tuple[int, int], stopping: bool, timeout_s: float) -> dict[str, int] | None:
    """What lacks up to ``end`` after at most ``timeout_s`` seconds; ``None`` when the collector died.

    A collector that was told to stop drains by itself, without waiting for sinks that write at intervals; ours is done
    when it has gone. One that goes on, because others use it, is done when every sink has what there was at ``end``.
    """
    deadline = time.monotonic() + timeout_s
    said = answered = time.monotonic()
    left: dict[str, int] = {}
    while time.monotonic() < deadline:
        if stopping and _has_gone(home, found):
            return left if found.process is not None and found.process.returncode else {}
        document = collectors.health(found.health, collectors.PATIENCE_S)
        if document is not None:
            answered = time.monotonic()
            left = collectors.lacking(home, document, end)
            if not stopping and not left:
                return {}
            if left and time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                _say("delivering: " + ", ".join(f"{name} {size >> 10} KiB" for name, size in sorted(left.items())))
        elif not stopping or time.monotonic() - answered > _GONE_S:
            return None
        time.sleep(_POLL_S)
    if stopping:
        # The second signal is its order to hurry.
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGTERM)
        hurried = time.monotonic() + 2 * _GONE_S
        while not _has_gone(home, found) and time.monotonic() < hurried:
            time.sleep(_POLL_S)
    return left


def _has_gone(home: Path, found: Found) -> bool:
    """Whether a collector that was told to stop did: a child of ours has ended, another's has taken its name away."""
    if found.process is not None:
        return found.process.poll() is not None
    return not (home / collectors.PUBLISHED).exists()


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
