"""The process that the user starts: settles the run's identity before Ray starts, and tells how the run ended."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_otel import instrumentation
from verl_otel.telemetry import events, guard, run, state
from verl_otel.telemetry.run import Run
from verl_otel.telemetry.settings import Settings, export_file_to_env, export_to_env

_LATEST = "latest_checkpointed_iteration.txt"
_started: Run | None = None


def before_run(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``validate_config``, which the entry point calls first: its module, run by ``-m``, is complete by now."""
    with guard.guarded("run"):
        instrumentation.install_in_main()
    return wrapped(*args, **kwargs)


def run_ppo(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``run_ppo(config, task_runner_class)``: one launch of a run, from before Ray's start to after its end."""
    current: Run | None = None
    with guard.guarded("run"):
        current = start(args[0] if args else kwargs["config"])
    if current is None:
        return wrapped(*args, **kwargs)
    status, code, failure = "finished", 0, None
    try:
        return wrapped(*args, **kwargs)
    except KeyboardInterrupt:
        status, code = "interrupted", 130
        raise
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        status = "failed" if code else "finished"
        raise
    except BaseException as error:
        status, code, failure = "failed", 1, error
        raise
    finally:
        with guard.guarded("run"):
            _finish(current, status, code, failure)


def start(config: Any) -> Run | None:
    """Settle identity and settings from ``config`` and the environment, and put both where Ray's workers find them."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else dict(config)
    unknown = export_to_env(plain.get("verl_otel") or {})
    if unknown:
        guard.warn_once(
            "settings",
            f"verl_otel.{unknown[0]} in verl's config is not a setting of verl-otel; it is ignored",
        )
    _settings_from_verl(plain)
    export_file_to_env()
    settings = Settings.from_env()
    trainer = plain.get("trainer") or {}
    directory = trainer.get("default_local_dir")
    checkpoints = Path(directory).absolute() if directory else None
    current = run.resolve(settings, names(plain), checkpoints, _resumes(trainer, checkpoints))
    run.to_env(current)
    state.set_role("driver")
    events.run_started(current, plain)
    return current


def names(config: Mapping[str, Any]) -> dict[str, str]:
    """Project, experiment, algorithm and model, as verl's config names them."""
    trainer = config.get("trainer") or {}
    model = ((config.get("actor_rollout_ref") or {}).get("model") or {}).get("path") or ""
    return {
        "project": str(trainer.get("project_name") or ""),
        "experiment": str(trainer.get("experiment_name") or ""),
        "algorithm": str((config.get("algorithm") or {}).get("adv_estimator") or ""),
        "model": os.path.basename(str(model).rstrip("/")),
    }


def _settings_from_verl(config: Mapping[str, Any]) -> None:
    """verl's own keys that mean for us what they mean for verl."""
    rollout = (config.get("actor_rollout_ref") or {}).get("rollout") or {}
    trace = rollout.get("trace") or {}
    data = config.get("data") or {}
    values: dict[str, Any] = {
        "group_size_hint": int(data.get("train_batch_size") or 0) * int(rollout.get("n") or 1),
    }
    if trace.get("backend") == "otel":
        values["token2text"] = bool(trace.get("token2text", False))
        per_worker = trace.get("max_samples_per_step_per_worker")
        if per_worker is not None:
            workers = int((rollout.get("agent") or {}).get("num_workers") or 1)
            values["log_rollout_traces"] = int(per_worker) * workers * int(rollout.get("n") or 1)
    export_to_env(values)


def _resumes(trainer: Mapping[str, Any], checkpoints: Path | None) -> bool:
    mode = trainer.get("resume_mode", "auto")
    if mode == "resume_path":
        return True
    return mode == "auto" and checkpoints is not None and (checkpoints / _LATEST).exists()


def _finish(current: Run, status: str, code: int, failure: BaseException | None) -> None:
    settings = Settings.from_env()
    # The workers live as long as this process. What they finished last goes out within one interval.
    time.sleep(min(settings.flush_interval, 1.0))
    events.run_finished(current, status, code, failure)
    state.flush(settings.shutdown_timeout)
