"""The one settings object. Its three doors: the environment, verl's own config (``+verl_otel.<name>=…``), a file.

The driver writes what came through the other two doors into the environment before Ray starts, so that every
process of a run reads the same settings from its environment and nothing else has to travel.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PREFIX = "VERL_OTEL_"
CONFIG_FILE = "VERL_OTEL_CONFIG"
CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

_TRUE = frozenset({"1", "true", "yes", "on", "span_only", "event_only", "span_and_event"})
_FALSE = frozenset({"0", "false", "no", "off", "no_content", ""})


class SettingError(ValueError):
    """A setting that cannot be read: says which, what it was, and what it may be."""


def _meta(doc: str) -> dict[str, str]:
    return {"doc": doc}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a training process was told. Each field ``x`` is the variable ``VERL_OTEL_X`` and ``+verl_otel.x=…``."""

    home: str = field(
        default="./verl-otel-data",
        metadata=_meta("Where archive, spool, outbox and MLflow's files are kept."),
    )
    run_id: str = field(
        default="",
        metadata=_meta("The run's id. Empty: found beside the checkpoints when verl resumes, else new."),
    )
    run_attempt: int = field(default=0, metadata=_meta("Which launch of the run this is, from 1. 0: worked out."))
    project: str = field(default="", metadata=_meta("Project name. Empty: `trainer.project_name`."))
    experiment: str = field(default="", metadata=_meta("Experiment name. Empty: `trainer.experiment_name`."))
    algorithm: str = field(default="", metadata=_meta("Algorithm. Empty: `algorithm.adv_estimator`."))
    model: str = field(default="", metadata=_meta("Model name. Empty: last part of `actor_rollout_ref.model.path`."))
    max_length: int = field(
        default=65_536,
        metadata=_meta("Longest text in one attribute, in characters; longer ones are cut. 0: no limit."),
    )
    token_ids: bool = field(default=True, metadata=_meta("Whether turns carry their token ids, packed."))
    token2text: bool = field(default=True, metadata=_meta("Whether turns carry decoded text."))
    log_rollout_traces: int = field(
        default=-1,
        metadata=_meta("Trajectories traced per step and partition, whole groups together. -1: all; 0: none."),
    )
    flush_interval: float = field(default=1.0, metadata=_meta("Seconds between exports of spans and events."))
    queue_size: int = field(
        default=65_536, metadata=_meta("Spans, and events, kept while the endpoint does not answer.")
    )
    queue_bytes: int = field(
        default=256 << 20,
        metadata=_meta("Bytes of text in those that are kept; beyond it new ones are dropped and counted."),
    )
    retry_for: float = field(
        default=300.0,
        metadata=_meta("Seconds for which one batch is tried again before it is dropped and counted."),
    )
    shutdown_timeout: float = field(default=5.0, metadata=_meta("Seconds that a process waits at its end for exports."))
    disabled_hooks: str = field(
        default="",
        metadata=_meta("Comma-separated features of the hook table to leave out (see `verl-otel doctor`)."),
    )
    group_size_hint: int = field(
        default=0,
        metadata=_meta("Trajectories rolled out per step, for `log_rollout_traces`. 0: from verl's config."),
    )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings; raises ``SettingError`` that names the variable and what it may be."""
        source = os.environ if env is None else env
        values: dict[str, Any] = _from_file(source.get(CONFIG_FILE, ""))
        for item in fields(cls):
            raw = source.get(PREFIX + item.name.upper())
            if raw is not None and raw != "":
                values[item.name] = _parse(item.name, str(item.type), raw)
        return cls(**values)


def disabled(env: Mapping[str, str] | None = None) -> bool:
    """Whether ``OTEL_SDK_DISABLED`` turns all of it off."""
    source = os.environ if env is None else env
    return source.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def capture_content(env: Mapping[str, str] | None = None) -> bool:
    """Whether messages, tool arguments and results may leave the process (on unless the OTel variable says no)."""
    source = os.environ if env is None else env
    raw = source.get(CAPTURE_CONTENT, "span_only").strip().lower()
    return raw not in _FALSE or raw == ""


def export_to_env(values: Mapping[str, Any], env: MutableMapping[str, str] | None = None) -> list[str]:
    """Put settings from verl's config into the environment where it does not say otherwise; returns unknown names."""
    target = os.environ if env is None else env
    known = {item.name: str(item.type) for item in fields(Settings)}
    unknown = []
    for name, value in values.items():
        if name not in known:
            unknown.append(name)
        elif value is not None:
            _parse(name, known[name], str(value))
            target.setdefault(PREFIX + name.upper(), str(value))
    return unknown


def _parse(name: str, kind: str, raw: str) -> Any:
    variable = PREFIX + name.upper()
    text = raw.strip()
    try:
        if kind == "bool":
            lowered = text.lower()
            if lowered in _TRUE:
                return True
            if lowered in _FALSE:
                return False
            raise ValueError
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        wanted = {"bool": "true or false", "int": "a whole number", "float": "a number"}[kind]
        raise SettingError(f"{variable}={raw!r}: give {wanted}") from None
    return text


def export_file_to_env() -> None:
    """Put the file's settings into the environment, for processes on machines that do not have the file."""
    export_to_env(_from_file(os.environ.get(CONFIG_FILE, "")))


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        loaded = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"{CONFIG_FILE}={path}: cannot be read as JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise SettingError(f"{path}: must be a JSON object of settings, not {type(loaded).__name__}")
    kinds = {item.name: str(item.type) for item in fields(Settings)}
    unknown = sorted(set(loaded) - set(kinds))
    if unknown:
        raise SettingError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(sorted(kinds))}")
    return {name: _parse(name, kinds[name], str(value)) for name, value in loaded.items()}
