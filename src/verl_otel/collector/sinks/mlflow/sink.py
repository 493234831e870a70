"""The sink: events to runs, spans to traces, and how far all of it is safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from verl_otel import semconv
from verl_otel.collector.records import Batch, EventRecord, Position
from verl_otel.collector.sinks.base import Reject, SinkContext
from verl_otel.collector.sinks.mlflow import config as own_config
from verl_otel.collector.sinks.mlflow.config import MlflowConfig
from verl_otel.collector.sinks.mlflow.trees import Trees

if TYPE_CHECKING:
    from verl_otel.collector.sinks.mlflow.runs import Runs
    from verl_otel.collector.sinks.mlflow.traces import Traces


# How long an outcome waits for its trajectory, which another process sent.
_OUTCOME_S = 4.0


class _Outcome(NamedTuple):
    """An outcome event to be written after its trace; ``since`` is where it lies in the spool."""

    since: Position
    event: EventRecord
    taken_at: float

    def age_s(self) -> float:
        return time.monotonic() - self.taken_at


class MlflowSink:
    """Everything that it writes may be written again and shows up once: runs by tag, points, spans and assessments by id."""

    wants = frozenset({"spans", "events"})

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        return own_config.check(config, path)

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self._config = MlflowConfig(**config)
        self._context = context
        self._trees = Trees()
        self._outcomes: list[_Outcome] = []
        self._delivered: Position | None = None
        self._runs: Runs
        self._traces: Traces

    def start(self) -> Position | None:
        from verl_otel.collector.sinks.mlflow.backend import Backend
        from verl_otel.collector.sinks.mlflow.runs import Runs
        from verl_otel.collector.sinks.mlflow.traces import Traces

        backend = Backend(self._config, self._context.home)
        self._runs = Runs(backend, self._config, self._context.counters)
        self._traces = Traces(backend, self._config, self._runs, self._context.counters)
        return None

    def deliver(self, batch: Batch) -> None:
        generations: list[EventRecord] = []
        outcomes: list[EventRecord] = []
        for event in batch.events:
            if not event.resource.run_id:
                continue
            if event.name == semconv.Event.GENERATION:
                generations.append(event)
            elif event.name == semconv.Event.OUTCOME:
                outcomes.append(event)
            else:
                self._one(event)
        try:
            self._runs.generations(generations)
        except Reject as error:
            self._context.counters.add("refused_events", error.count)
        for span in batch.spans:
            if span.resource.run_id:
                self._trees.add(span, batch.start)
        # A batch that comes again after a failure has outcomes that wait already.
        waiting = {item.event.attributes.get(semconv.EVENT_ID) for item in self._outcomes}
        self._outcomes += [
            _Outcome(batch.start, event, time.monotonic())
            for event in outcomes
            if event.attributes.get(semconv.EVENT_ID) not in waiting
        ]
        self._delivered = batch.end
        self._flush(everything=False)

    def _one(self, event: EventRecord) -> None:
        handlers: dict[str, Callable[[EventRecord], None]] = {
            semconv.Event.RUN_STARTED: self._runs.started,
            semconv.Event.METRICS: self._runs.metrics,
            semconv.Event.RUN_FINISHED: self._runs.finished,
        }
        handler = handlers.get(event.name)
        if handler is None:
            return
        try:
            handler(event)
        except Reject as error:
            # One event that MLflow will not have must not hold up the others of its batch.
            self._context.counters.add(f"refused_{event.name}")
            self._context.counters.add("refused_events", error.count)

    def _flush(self, everything: bool) -> None:
        trees = self._trees.ready(everything)
        if trees:
            self._traces.write(trees)
            self._trees.done(trees)
        later: list[_Outcome] = []
        for index, outcome in enumerate(self._outcomes):
            if everything or (outcome.age_s() > _OUTCOME_S and not self._trees.holds(outcome.event.trace_id)):
                try:
                    self._traces.outcome(outcome.event)
                except Exception:
                    self._outcomes = [*later, *self._outcomes[index:]]
                    raise
            else:
                later.append(outcome)
        self._outcomes = later

    def tick(self) -> None:
        self._flush(everything=False)

    def committed(self) -> Position | None:
        held = [place for place in (self._trees.oldest(), *(item.since for item in self._outcomes[:1])) if place]
        return min(held) if held else self._delivered

    def close(self, drain: bool) -> None:
        if drain:
            self._flush(everything=True)
