"""Agent loop workers: trajectories, their turns and rewards."""

from __future__ import annotations

import contextlib
import copy
import time
from contextvars import ContextVar
from typing import Any

from verl_otel import semconv
from verl_otel.telemetry import content, events, guard, rewards, state, trajectories
from verl_otel.telemetry.trajectories import Trajectory

_in_turn: ContextVar[bool] = ContextVar("verl_otel_in_turn", default=False)
_REQUEST = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_new_tokens": semconv.REQUEST_MAX_TOKENS,
}
_FINISH = {"completed": "stop", "aborted": "abort"}


def worker_init(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    with guard.guarded("trajectories"):
        state.set_role("agent_loop")
        # A fast tokenizer raises "Already borrowed" when one thread sets it up while another uses it. Ours decodes
        # in the background, so it has a copy of its own.
        instance._verl_otel_tokenizer = copy.deepcopy(instance.tokenizer)
    return result


def trace_config(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """verl's own rollout trace knows no backend ``otel``; for it that means none."""
    names = ("project_name", "experiment_name", "backend", "token2text", "max_samples_per_step_per_worker")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("backend") == "otel":
        given["backend"] = None
        return wrapped(**given)
    return wrapped(*args, **kwargs)


async def run_agent_loop(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_run_agent_loop(sampling_params, trajectory, *, agent_name, trace, **sample)``: one trajectory."""
    trajectory: Trajectory | None = None
    with guard.guarded("trajectories"):
        trajectory = _start(instance, kwargs.get("trajectory", args[1] if len(args) > 1 else {}), kwargs)
    if trajectory is None:
        return await wrapped(*args, **kwargs)
    token = trajectories.current.set(trajectory)
    failure: BaseException | None = None
    try:
        return await wrapped(*args, **kwargs)
    except BaseException as error:
        failure = error
        raise
    finally:
        trajectories.current.reset(token)
        with guard.guarded("trajectories"):
            if failure is not None:
                events.outcome_of(trajectory, "failed", trajectory.step)
            trajectory.finish({}, failure)


def _identity(info: dict[str, Any], sample: dict[str, Any]) -> tuple[str, int]:
    uid = sample.get("uid")
    session = sample.get("session_id", info.get("rollout_n", 0))
    return str(uid if uid is not None else f"{info.get('step')}-{info.get('sample_index')}"), int(session)


def _start(worker: Any, info: dict[str, Any], sample: dict[str, Any]) -> Trajectory | None:
    sdk = state.sdk()
    if sdk is None:
        return None
    group, session = _identity(info, sample)
    validate = bool(info.get("validate"))
    rollout = worker.config.actor_rollout_ref.rollout
    index = content.scalar(info.get("sample_index"))
    truth = (
        (sample.get("reward_model") or {}).get("ground_truth") if isinstance(sample.get("reward_model"), dict) else None
    )
    trajectory = trajectories.start(
        sdk,
        agent=str(sample.get("agent_name", "agent")),
        partition="val" if validate else "train",
        step=int(info.get("step", 0)),
        group=group,
        session=session,
        messages=sample.get("raw_prompt"),
        attributes={
            semconv.GROUP_SIZE: int(rollout.val_kwargs.n if validate else rollout.n),
            semconv.SAMPLE_INDEX: index,
            semconv.DATA_SOURCE: content.scalar(sample.get("data_source")),
            semconv.GROUND_TRUTH: content.to_json(truth) if truth is not None and not isinstance(truth, str) else truth,
            semconv.TOOL_DEFINITIONS: _tool_definitions(worker),
        },
    )
    if trajectory is not None:
        tokenizer = getattr(worker, "_verl_otel_tokenizer", None)
        trajectory.decode_with(getattr(tokenizer, "decode", None))
    return trajectory


def _tool_definitions(worker: Any) -> str | None:
    known: str | None = getattr(worker, "_verl_otel_tools", "")
    if known == "":
        schemas = [tool.tool_schema.model_dump(exclude_none=True) for tool in getattr(worker, "tools", None) or ()]
        known = worker._verl_otel_tools = content.to_json(schemas) if schemas else None
    return known


async def generate(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``generate(request_id, *, prompt_ids, sampling_params, …)``: one turn, even of several engine calls."""
    trajectory = trajectories.current.get()
    if trajectory is None or _in_turn.get():
        return await wrapped(*args, **kwargs)
    turn = None
    with guard.guarded("turns"):
        sampling = kwargs.get("sampling_params") or {}
        request = {name: content.scalar(sampling[key]) for key, name in _REQUEST.items() if key in sampling}
        turn = trajectory.start_turn(kwargs["prompt_ids"], request=request)
    if turn is None:
        return await wrapped(*args, **kwargs)
    token = _in_turn.set(True)
    try:
        output = await wrapped(*args, **kwargs)
    except BaseException as error:
        with guard.guarded("turns"):
            trajectory.finish_turn(turn, error=error)
        raise
    finally:
        _in_turn.reset(token)
    with guard.guarded("turns"):
        extra = getattr(output, "extra_fields", None) or {}
        if trajectory.policy_start is None:
            trajectory.policy_start = extra.get("min_global_steps")
        trajectory.policy_end = extra.get("max_global_steps", trajectory.policy_end)
        reason = str(getattr(output, "stop_reason", "") or "")
        trajectory.finish_turn(
            turn,
            output_ids=output.token_ids,
            finish_reason=_FINISH.get(reason, reason),
            log_probs=getattr(output, "log_probs", None),
            attributes={
                semconv.CACHED_TOKENS: extra.get("num_cached_tokens"),
                semconv.PREEMPTIONS: getattr(output, "num_preempted", None),
                semconv.POLICY_VERSION_START: extra.get("min_global_steps"),
                semconv.POLICY_VERSION_END: extra.get("max_global_steps"),
            },
        )
    return output


async def compute_score(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_compute_score(outputs, kwargs)``: the reward of a trajectory, as the agent loop worker gets it."""
    trajectory = trajectories.current.get()
    if trajectory is None:
        return await wrapped(*args, **kwargs)
    start_ns = time.time_ns()
    failure: BaseException | None = None
    try:
        return await wrapped(*args, **kwargs)
    except BaseException as error:
        failure = error
        raise
    finally:
        with guard.guarded("rewards"):
            outputs = args[0] if args else kwargs["outputs"]
            _record(trajectory, instance, outputs, start_ns, failure)


def _record(
    trajectory: Trajectory, worker: Any, outputs: list[Any], start_ns: int, failure: BaseException | None
) -> None:
    final = outputs[-1]
    trajectory.span.set_attributes(
        {
            semconv.NUM_TURNS: int(final.num_turns),
            semconv.PROMPT_TOKENS: len(final.prompt_ids),
            semconv.RESPONSE_TOKENS: sum(len(output.response_ids) for output in outputs),
        }
    )
    if final.reward_score is None and failure is None:
        return
    manager = ""
    with contextlib.suppress(AttributeError):
        manager = str(worker.config.reward.reward_manager.name)
    rewards.record(
        trajectory,
        final.reward_score,
        final.extra_fields.get("reward_extra_info") or {},
        start_ns,
        manager,
        failure,
    )
