"""FSDP and Megatron ranks: each call of a worker as a child of its phase, with no context sent over Ray.

A rank learns the step from the weight updates: ``update_weights(global_steps=n)`` ends step n's work.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verl_otel import semconv
from verl_otel.telemetry import guard, state
from verl_otel.telemetry.sdk import parent
from verl_otel.telemetry.spans import set_error, span_ids

_step: int | None = None
_calls: Counter[str] = Counter()


def init(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with guard.guarded("ranks"):
        role = str(kwargs.get("role", "actor"))
        rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        state.set_role("ref" if role == "ref" else "actor", int(rank) if rank else None, int(world) if world else None)
    return wrapped(*args, **kwargs)


@contextmanager
def _called(method: str, phase: str) -> Iterator[None]:
    start_ns = time.time_ns()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        with guard.guarded("ranks"):
            _emit(method, phase, start_ns, failure)


def _emit(method: str, phase: str, start_ns: int, failure: BaseException | None) -> None:
    sdk = state.sdk()
    if sdk is None:
        return
    end_ns = time.time_ns()
    ids = None
    if _step is not None:
        # The phase of the first call surely exists; a further one may run under another phase, so it hangs on the step.
        owner = sdk.run.step(_step) if _calls[method] else sdk.run.phase(_step, phase)
        _calls[method] += 1
        attributes = {
            semconv.SPAN_TYPE: semconv.SpanType.WORKER,
            semconv.WORKER_METHOD: method,
            semconv.STEP: _step,
        }
        span = sdk.start_span(method, attributes, context=parent(owner), start_ns=start_ns)
        if failure is not None:
            set_error(span, failure)
        span.end(end_ns)
        ids = span_ids(span)
    labels = {semconv.WORKER_METHOD: method}
    sdk.histogram(semconv.Metric.WORKER_DURATION, (end_ns - start_ns) / 1e9, labels, ids, "s")


def compute_log_prob(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with _called("compute_log_prob", "old_log_prob"):
        return wrapped(*args, **kwargs)


def compute_ref_log_prob(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with _called("compute_ref_log_prob", "ref"):
        return wrapped(*args, **kwargs)


def update_actor(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with _called("update_actor", "update_actor"):
        return wrapped(*args, **kwargs)


def save_checkpoint(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with _called("save_checkpoint", "save_checkpoint"):
        return wrapped(*args, **kwargs)


async def update_weights(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    global _step
    with _called("update_weights", "update_weights"):
        result = await wrapped(*args, **kwargs)
    with guard.guarded("ranks"):
        done = kwargs.get("global_steps", args[0] if args else None)
        if done is not None:
            _step = int(done) + 1
            _calls.clear()
        state.flush_soon()
    return result
