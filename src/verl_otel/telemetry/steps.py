"""Training steps and their phases as spans, in the one process that runs the training loop.

A step's span opens with the loop's ``step`` timer and ends when the step's scalars are logged, so that validation
and bookkeeping after the timer are seen too. Phases have computed ids: a rank's span finds its phase by name.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace

from verl_otel import semconv
from verl_otel.identity import SpanId
from verl_otel.telemetry import guard, state
from verl_otel.telemetry.sdk import Sdk, otlp_context, parent
from verl_otel.telemetry.spans import set_error

MAX_LINKS = 128
_HEADLINES = (
    "critic/score/mean",
    "critic/rewards/mean",
    "actor/pg_loss",
    "actor/loss",
    "actor/entropy",
    "actor/ppo_kl",
    "actor/grad_norm",
    "actor/lr",
    "response_length/mean",
    "num_turns/mean",
    "perf/throughput",
    "timing_s/gen",
    "timing_s/step",
)


class _Open:
    """The step (or the validation before training) that is open now."""

    def __init__(self, sdk: Sdk, step: int, span: trace.Span, ids: SpanId, is_step: bool) -> None:
        self.sdk = sdk
        self.step = step
        self.span = span
        self.ids = ids
        self.is_step = is_step
        self.thread = threading.get_ident()
        self.start_ns = time.time_ns()
        self.phases: list[SpanId] = []
        self.occurrences: Counter[str] = Counter()


_open: _Open | None = None


def current_step() -> int | None:
    """The number of the step that is open in this process."""
    return _open.step if _open is not None else None


def begin(step: int, epoch: int | None = None, validation: bool = False) -> None:
    """Open step ``step`` (or the validation before training), ending one that was left open."""
    global _open
    end()
    sdk = state.sdk()
    if sdk is None:
        return
    kind = semconv.SpanType.VALIDATION if validation else semconv.SpanType.STEP
    attributes: dict[str, Any] = {semconv.SPAN_TYPE: kind, semconv.STEP: step}
    if epoch is not None:
        attributes[semconv.EPOCH] = epoch
    ids = sdk.run.step(step)
    name = semconv.SPAN_VALIDATION if validation else semconv.SPAN_STEP
    _open = _Open(sdk, step, sdk.start_span(name, attributes, ids=ids), ids, not validation)


def link(trajectories: Sequence[SpanId]) -> None:
    """Link the open step to trajectories that it trains on, as many as may be."""
    if _open is not None:
        for ids in trajectories[:MAX_LINKS]:
            _open.span.add_link(otlp_context(ids))


def end(metrics: Mapping[str, Any] | None = None, error: BaseException | None = None) -> None:
    """End the open step, with its headline scalars."""
    global _open
    opened, _open = _open, None
    if opened is None:
        return
    attributes = {}
    for key, value in (metrics or {}).items():
        if (key in _HEADLINES or key.startswith("val-core/")) and isinstance(value, (int, float)):
            attributes[semconv.STEP_METRIC_PREFIX + key] = value
    duration = (metrics or {}).get("timing_s/step")
    if isinstance(duration, (int, float)):
        attributes[semconv.STEP_DURATION] = float(duration)
    opened.span.set_attributes(attributes)
    if error is not None:
        set_error(opened.span, error)
    opened.span.end()
    if opened.is_step:
        seconds = (time.time_ns() - opened.start_ns) / 1e9
        opened.sdk.histogram(semconv.Metric.STEP_DURATION, seconds, {}, opened.ids, "s")


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A phase of the open step. Without one, or in another thread than the step's, it is nothing."""
    opened = _open
    if opened is None or opened.thread != threading.get_ident():
        yield
        return
    started: tuple[trace.Span, SpanId] | None = None
    start_ns = time.time_ns()
    with guard.guarded("phases"):
        started = _start_phase(opened, name, start_ns)
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        if started is not None:
            with guard.guarded("phases"):
                _end_phase(opened, name, *started, start_ns, failure)


def _end_phase(
    opened: _Open, name: str, span: trace.Span, ids: SpanId, start_ns: int, error: BaseException | None
) -> None:
    end_ns = time.time_ns()
    opened.phases.remove(ids)
    if error is not None:
        set_error(span, error)
    span.end(end_ns)
    labels = {semconv.PHASE_NAME: name}
    opened.sdk.histogram(semconv.Metric.PHASE_DURATION, (end_ns - start_ns) / 1e9, labels, ids, "s")


def _start_phase(opened: _Open, name: str, start_ns: int) -> tuple[trace.Span, SpanId]:
    ids = opened.sdk.run.phase(opened.step, name, opened.occurrences[name])
    opened.occurrences[name] += 1
    rl_phase, bucket = semconv.PHASES.get(name, ("train", "overhead"))
    attributes = {
        semconv.SPAN_TYPE: semconv.SpanType.PHASE,
        semconv.PHASE_NAME: name,
        semconv.RL_PHASE: rl_phase,
        semconv.RL_BUCKET: bucket,
        semconv.STEP: opened.step,
    }
    context = parent(opened.phases[-1] if opened.phases else opened.ids)
    span = opened.sdk.start_span(name, attributes, ids=ids, context=context, start_ns=start_ns)
    opened.phases.append(ids)
    return span, ids
