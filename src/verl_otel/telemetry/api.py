"""The public API: for training loops and agent loops that are not verl's own.

Everything works as a context manager and as a decorator, in sync and async code, and does nothing when telemetry is
off or ``init`` was not called. ``training_step``, ``phase`` and ``trajectory`` emit what verl's hooks emit, so the
same commands and trackers show them.
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from verl_otel import semconv
from verl_otel.telemetry import content, events, guard, rewards, run, state, steps, trajectories
from verl_otel.telemetry.run import Run
from verl_otel.telemetry.settings import Settings, disabled
from verl_otel.telemetry.tool_calls import ToolCall
from verl_otel.telemetry.trajectories import Trajectory

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_run: Run | None = None


def init(
    project: str = "",
    experiment: str = "",
    config: Mapping[str, Any] | None = None,
    *,
    run_id: str = "",
    algorithm: str = "",
    model: str = "",
    checkpoint_dir: str | Path | None = None,
    resume: bool = False,
) -> str | None:
    """Start a run and return its id (``None`` when telemetry is off); in a process of a started run, join that.

    Args:
        project: project name; an experiment in MLflow, a project in W&B.
        experiment: the run's name.
        config: the run's configuration, sent with secrets removed.
        run_id: the run's id; found in ``checkpoint_dir`` with ``resume``, else new.
        algorithm: name of the RL algorithm.
        model: name of the trained model.
        checkpoint_dir: where the id is left for a later launch that resumes.
        resume: whether this launch goes on from a checkpoint in ``checkpoint_dir``.

    Raises:
        SettingError: a ``VERL_OTEL_*`` variable cannot be read.
    """
    global _run
    if disabled():
        return None
    settings = Settings.from_env()
    if settings.run_id and state.sdk() is not None and not run_id:
        return settings.run_id
    names = {"project": project, "experiment": experiment, "algorithm": algorithm, "model": model}
    _run = run.resolve(settings, names, Path(checkpoint_dir) if checkpoint_dir else None, resume)
    if run_id:
        _run = Run(run_id, _run.attempt, _run.project, _run.experiment, _run.algorithm, _run.model)
    run.to_env(_run)
    state.set_role("trainer")
    with guard.guarded("run"):
        events.run_started(_run, config)
    return _run.run_id


def shutdown(status: str = "finished", timeout_s: float | None = None) -> None:
    """End the run that ``init`` started, and send what is left. ``status`` may also be ``failed``."""
    global _run
    ended, _run = _run, None
    with guard.guarded("run"):
        steps.end()
        if ended is not None:
            events.run_finished(ended, status, 0 if status == "finished" else 1)
    state.shutdown(timeout_s)


class _Scope(Generic[T]):
    """A context manager and a decorator, of sync and async code. One object serves one use at a time."""

    feature = "api"

    def _new_handle(self) -> T:
        """What ``with … as`` gives, also when entering fails."""
        raise NotImplementedError

    def _enter(self, handle: T) -> None:
        raise NotImplementedError

    def _exit(self, error: BaseException | None) -> None:
        raise NotImplementedError

    def _copy(self) -> _Scope[T]:
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        return clone

    def __enter__(self) -> T:
        handle = self._new_handle()
        with guard.guarded(self.feature):
            self._enter(handle)
        return handle

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        with guard.guarded(self.feature):
            self._exit(error)

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, stack)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if asyncio.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._copy() as scope:
                    return self._returned(scope, await cast(Any, function)(*args, **kwargs))

            return cast(Callable[P, R], run_async)

        @functools.wraps(function)
        def run_sync(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._copy() as scope:
                return cast(R, self._returned(scope, function(*args, **kwargs)))

        return run_sync

    def _returned(self, scope: T, result: Any) -> Any:
        """What a decorated function returned; a scope may take it as its output."""
        return result


class training_step(_Scope[None]):
    """Training step ``step`` (from 1): the root span of its own trace."""

    def __init__(self, step: int, epoch: int | None = None) -> None:
        self._step, self._epoch = step, epoch

    def _new_handle(self) -> None:
        return None

    def _enter(self, handle: None) -> None:
        steps.begin(self._step, self._epoch)

    def _exit(self, error: BaseException | None) -> None:
        if steps.current_step() == self._step:
            steps.end(error=error)


class phase(_Scope[None]):
    """A phase of the open step, under verl's names where one fits (``gen``, ``reward``, ``update_actor``…)."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._context: AbstractContextManager[None] | None = None

    def _new_handle(self) -> None:
        return None

    def _enter(self, handle: None) -> None:
        self._context = steps.phase(self._name)
        self._context.__enter__()

    def _exit(self, error: BaseException | None) -> None:
        if self._context is None:
            return
        # The generator behind the context re-raises what it is given; our caller's exception goes on by itself.
        try:
            self._context.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as same:
            if same is not error:
                raise


class TrajectoryHandle:
    """What ``with trajectory(…) as t`` gives: a place for the output."""

    def __init__(self) -> None:
        self._trajectory: Trajectory | None = None
        self.attributes: dict[str, Any] = {}

    @property
    def trace_id(self) -> str | None:
        """The trajectory's trace id in hex, as the commands and trackers show it; ``None`` when it is not traced."""
        return f"{self._trajectory.ids.trace_id:032x}" if self._trajectory is not None else None

    def set_output(self, output: Any) -> None:
        """The trajectory's answer: a text, or chat messages."""
        if self._trajectory is not None:
            messages = [{"role": "assistant", "content": output}] if isinstance(output, str) else output
            text = content.to_json(content.genai_messages(messages))
            self._trajectory.put_text(self.attributes, semconv.OUTPUT_MESSAGES, text)

    def trained(self, step: int, advantage: float | None = None, staleness: int | None = None) -> None:
        """Say that training step ``step`` trained on this trajectory. May be called after the trajectory ended."""
        trajectory = self._trajectory
        if trajectory is not None:
            with guard.guarded("outcomes"):
                events.outcome_of(trajectory, "trained", step, advantage, staleness)


class trajectory(_Scope[TrajectoryHandle]):
    """One trajectory of an agent: the root span of its own trace.

    Args:
        agent: the agent's name.
        group: id of the prompt that siblings share; new if not given.
        index: which sibling this is, from 0.
        step: the training step that asks for it; the open step if not given, else 0.
        partition: ``train`` or ``val``.
        inputs: the prompt: a text or chat messages.
        group_size: how many siblings there are.
        ground_truth: the wanted answer.
    """

    def __init__(
        self,
        agent: str = "agent",
        *,
        group: str | None = None,
        index: int = 0,
        step: int | None = None,
        partition: str = "train",
        inputs: Any = None,
        group_size: int | None = None,
        ground_truth: str | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "agent": agent,
            "partition": partition,
            "session": index,
            "messages": inputs,
        }
        self._group, self._step = group, step
        self._attributes = {semconv.GROUP_SIZE: group_size, semconv.GROUND_TRUTH: ground_truth}
        self._handle: TrajectoryHandle | None = None
        self._token: Token[Trajectory | None] | None = None

    def _new_handle(self) -> TrajectoryHandle:
        self._handle = TrajectoryHandle()
        return self._handle

    def _enter(self, handle: TrajectoryHandle) -> None:
        sdk = state.sdk()
        if sdk is not None:
            step = self._step if self._step is not None else steps.current_step()
            group = self._group or uuid.uuid4().hex
            started = trajectories.start(
                sdk,
                step=step or 0,
                group=group,
                uid=_unique(group, step or 0, self._arguments["session"], self._arguments["partition"]),
                attributes=self._attributes,
                link_step=step is not None,
                **self._arguments,
            )
            handle._trajectory = started
            self._token = trajectories.current.set(started)

    def _exit(self, error: BaseException | None) -> None:
        if self._token is not None:
            trajectories.current.reset(self._token)
        handle = self._handle
        if handle is not None and handle._trajectory is not None:
            handle._trajectory.finish(handle.attributes, error)

    def _returned(self, scope: TrajectoryHandle, result: Any) -> Any:
        if isinstance(result, str) and scope is not None:
            scope.set_output(result)
        return result


_used: Counter[tuple[str, int, int, str]] = Counter()


def _unique(group: str, step: int, index: int, partition: str) -> str:
    """A name for a trajectory's group that is its own in the run: callers use a prompt again at every step."""
    key = (group, step, index, partition)
    if len(_used) > 100_000:
        _used.clear()
    _used[key] += 1
    return f"{step}/{group}" if _used[key] == 1 else f"{step}/{group}/{_used[key]}"


class TurnHandle:
    """What ``with turn(…) as t`` gives: a place for what the engine answered."""

    def __init__(self) -> None:
        self.output: dict[str, Any] = {}

    def set_output(
        self,
        text: str = "",
        *,
        token_ids: list[int] | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        finish_reason: str = "",
        log_probs: list[float] | None = None,
    ) -> None:
        """What was generated, as text or token ids, with counts of tokens where no ids say them."""
        self.output = {
            "output_text": text,
            "output_ids": token_ids,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "finish_reason": finish_reason,
            "log_probs": log_probs,
        }


class turn(_Scope[TurnHandle]):
    """One engine call of the open trajectory.

    Args:
        inputs: what is new since the turn before: a text or chat messages.
        prompt_ids: or the whole token sequence so far; only what is new of it is kept.
        request: sampling parameters under GenAI names (``gen_ai.request.temperature``…).
    """

    def __init__(
        self,
        inputs: Any = None,
        *,
        prompt_ids: list[int] | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._inputs, self._prompt_ids, self._request = inputs, prompt_ids, request
        self._handle = TurnHandle()
        self._open: tuple[Trajectory, Any] | None = None

    def _new_handle(self) -> TurnHandle:
        self._handle = TurnHandle()
        return self._handle

    def _enter(self, handle: TurnHandle) -> None:
        owner = trajectories.current.get()
        if owner is not None:
            self._open = (owner, owner.start_turn(self._prompt_ids, self._inputs, self._request))

    def _exit(self, error: BaseException | None) -> None:
        if self._open is not None:
            owner, opened = self._open
            owner.finish_turn(opened, error=error, **self._handle.output)

    def _returned(self, scope: TurnHandle, result: Any) -> Any:
        if isinstance(result, str) and scope is not None and not scope.output:
            scope.set_output(result)
        return result


class ToolHandle:
    """What ``with tool_call(…) as call`` gives: a place for the result."""

    def __init__(self) -> None:
        self.result: Any = ""
        self.reward: float | None = None


class tool_call(_Scope[ToolHandle]):
    """One tool call of the open trajectory; an exception inside marks it as failed.

    Args:
        name: the tool's name.
        arguments: its arguments: a mapping, or JSON text as the model wrote it.
        call_id: the call's id in the conversation.
    """

    def __init__(self, name: str, arguments: Any = None, call_id: str | None = None) -> None:
        self._name, self._arguments, self._call_id = name, arguments, call_id
        self._handle = ToolHandle()
        self._call: ToolCall | None = None

    def _new_handle(self) -> ToolHandle:
        self._handle = ToolHandle()
        return self._handle

    def _enter(self, handle: ToolHandle) -> None:
        owner = trajectories.current.get()
        if owner is not None:
            given = self._arguments
            text = given if isinstance(given, str) else content.to_json({} if given is None else given)
            self._call = ToolCall(owner, self._name, text, self._call_id)

    def _exit(self, error: BaseException | None) -> None:
        if self._call is not None:
            if error is not None:
                self._call.fail(error)
            result = self._handle.result
            self._call.finish(result if isinstance(result, str) else content.to_json(result), self._handle.reward)

    def _returned(self, scope: ToolHandle, result: Any) -> Any:
        if scope is not None and scope.result == "":
            scope.result = result
        return result


def reward(score: float, /, *, manager: str = "", **parts: Any) -> None:
    """The open trajectory's reward, and further values of it by name (``acc=1.0, format=0.5``)."""
    owner = trajectories.current.get()
    if owner is not None:
        with guard.guarded("rewards"):
            rewards.record(owner, float(score), parts, time.time_ns(), manager)


def track_metric(name: str | Mapping[str, Any], value: Any = None, step: int | None = None) -> None:
    """Log a scalar, ``track_metric("my/key", 0.5)``, or several, ``track_metric({"my/key": 0.5})``, at a step.

    ``step`` is the open step, or the one of the open trajectory, if not given.
    """
    with guard.guarded("metrics"):
        data = dict(name) if isinstance(name, Mapping) else {name: value}
        if step is None:
            owner = trajectories.current.get()
            step = steps.current_step()
            step = step if step is not None else (owner.step if owner is not None else 0)
        events.metrics(data, step)
