"""The training loop (verl's V1 trainers): steps, phases, and what became of the trajectories."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from verl_otel.telemetry import events, guard, state, steps

_trainer: weakref.ref[Any] | None = None
_advantages: dict[str, tuple[float, float]] = {}


def init(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    global _trainer
    with guard.guarded("steps"):
        state.set_role("trainer")
        _trainer = weakref.ref(instance)
    return wrapped(*args, **kwargs)


def timer(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Iterator[None]:
    """Every timer of verl's is a generator that ends up here; only those of the training loop become spans."""
    return _timed(wrapped, args, kwargs)


def _timed(wrapped: Any, args: Any, kwargs: Any) -> Iterator[None]:
    name = args[0] if args else kwargs.get("name", "")
    if name == "step":
        with guard.guarded("steps"):
            trainer = _trainer() if _trainer is not None else None
            if trainer is not None:
                per_epoch = getattr(trainer, "steps_per_epoch", 0) or 0
                epoch = (trainer.global_steps - 1) // per_epoch if per_epoch else None
                steps.begin(int(trainer.global_steps), epoch)
        yield from wrapped(*args, **kwargs)
    else:
        with steps.phase(str(name)):
            yield from wrapped(*args, **kwargs)


def fit(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    failure: BaseException | None = None
    try:
        return wrapped(*args, **kwargs)
    except BaseException as error:
        failure = error
        raise
    finally:
        with guard.guarded("steps"):
            steps.end(error=failure)
            sdk = state.sdk()
            if sdk is not None:
                state.flush(sdk.settings.shutdown_timeout)


def validate(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    opened = False
    with guard.guarded("steps"):
        if steps.current_step() is None:
            steps.begin(int(instance.global_steps), validation=True)
            opened = True
    try:
        if not opened:
            return wrapped(*args, **kwargs)
        with steps.phase("testing"):
            return wrapped(*args, **kwargs)
    finally:
        if opened:
            with guard.guarded("steps"):
                steps.end()


def prepare_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with steps.phase("prepare"):
        return wrapped(*args, **kwargs)


def balance_batch(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with steps.phase("balance"):
        return wrapped(*args, **kwargs)


def compute_metrics(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with steps.phase("metrics"):
        return wrapped(*args, **kwargs)


def compute_advantage(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Note each row's advantage (mean over its trained tokens) and score (sum over its tokens)."""
    data = wrapped(*args, **kwargs)
    with guard.guarded("outcomes"):
        keys = kwargs["batch_keys"] if "batch_keys" in kwargs else args[1]
        mask = data.batch["response_mask"].float()
        tokens = mask.sum(dim=-1).clamp(min=1)
        advantages = ((data.batch["advantages"] * mask).sum(dim=-1) / tokens).tolist()
        scores = data.batch["token_level_scores"].sum(dim=-1).tolist()
        for key, advantage, score in zip(keys, advantages, scores, strict=True):
            _advantages[key] = (advantage, score)
    return data


def step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``step`` returns what it trained on: link it, and say so to the trajectories."""
    _advantages.clear()
    batch = wrapped(*args, **kwargs)
    with guard.guarded("outcomes"):
        sdk = state.sdk()
        if sdk is not None:
            rows = [
                (key, tag)
                for key, tag in zip(batch.keys, batch.tags, strict=True)
                if not (tag or {}).get("is_padding", False)
            ]
            named = [(*split_key(key), key, tag) for key, tag in rows]
            steps.link([sdk.run.trajectory(batch.partition_id, uid, session) for uid, session, *_ in named])
            state.background.submit(_outcomes, int(instance.global_steps), batch.partition_id, named, dict(_advantages))
    return batch


def split_key(key: str) -> tuple[str, int, int]:
    """``{uid}_{session}_{index}``, the name that V1 gives to each output of a trajectory."""
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)


def _outcomes(
    step: int,
    partition: str,
    rows: list[tuple[str, int, int, str, dict[str, Any]]],
    advantages: dict[str, tuple[float, float]],
) -> None:
    sdk = state.sdk()
    if sdk is None:
        return
    for uid, session, index, key, tag in rows:
        advantage, score = advantages.get(key, (None, None))
        version = tag.get("max_global_steps")
        events.outcome(
            "trained",
            step,
            sdk.run.trajectory(partition, uid, session),
            partition,
            uid,
            session,
            output_index=index,
            advantage=advantage,
            reward=score,
            staleness=step - 1 - int(version) if version is not None else None,
        )
