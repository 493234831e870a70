"""Reward workers and rollout servers: how long their calls take, and what fails, as metrics."""

from __future__ import annotations

import time
from typing import Any

from verl_otel import semconv
from verl_otel.telemetry import guard, state


async def compute_score(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``RewardLoopWorker.compute_score(data)``."""
    manager = type(getattr(instance, "reward_manager", None)).__name__
    return await _timed(
        "reward", semconv.Metric.REWARD_DURATION, {semconv.REWARD_MANAGER: manager}, wrapped, args, kwargs
    )


async def generate(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``vLLMHttpServer.generate(…)``."""
    return await _timed("rollout_server", semconv.Metric.ENGINE_DURATION, {}, wrapped, args, kwargs)


async def _timed(role: str, metric: str, labels: dict[str, str], wrapped: Any, args: Any, kwargs: Any) -> Any:
    start = time.perf_counter()
    failure = ""
    try:
        return await wrapped(*args, **kwargs)
    except BaseException as error:
        failure = type(error).__name__
        raise
    finally:
        with guard.guarded(role):
            state.set_role(role)
            sdk = state.sdk()
            if sdk is not None:
                attributes = {**labels, semconv.ERROR_TYPE: failure} if failure else labels
                sdk.histogram(metric, time.perf_counter() - start, attributes, None, "s")
