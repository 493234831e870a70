"""Prints runs, steps and trajectories to standard output, a line each."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from verl_otel import semconv
from verl_otel.collector.records import Batch, EventRecord, Position
from verl_otel.collector.sinks.base import ConfigError, SinkContext

_HEADLINES = ("critic/score/mean", "actor/pg_loss", "actor/entropy", "response_length/mean", "timing_s/step")


class ConsoleSink:
    """``metrics``: keys to print for each step; those that a step does not have are left out."""

    wants = frozenset({"spans", "events"})

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        unknown = set(config) - {"metrics"}
        if unknown:
            raise ConfigError(f"{path}.{sorted(unknown)[0]}", "unknown key; known is metrics")
        metrics = config.get("metrics", list(_HEADLINES))
        if not isinstance(metrics, list) or not all(isinstance(key, str) for key in metrics):
            raise ConfigError(f"{path}.metrics", "must be a list of metric keys")
        return {"metrics": metrics}

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self._keys = config["metrics"]

    def start(self) -> Position | None:
        return None

    def deliver(self, batch: Batch) -> None:
        done: Counter[tuple[str, str, int]] = Counter()
        for span in batch.spans:
            if span.type == semconv.SpanType.TRAJECTORY:
                where = str(span.attributes.get(semconv.PARTITION)), int(span.attributes.get(semconv.STEP, 0))
                done[(span.resource.run_id, *where)] += 1
        for (run, partition, step), count in done.items():
            _say(f"{run}  step {step}  {count} {partition} trajectories")
        for event in batch.events:
            line = self._line(event)
            if line:
                _say(f"{event.resource.run_id}  {line}")

    def _line(self, event: EventRecord) -> str:
        if event.name == semconv.Event.RUN_STARTED:
            return f"started: {event.resource.project}/{event.resource.experiment}, attempt {event.resource.attempt}"
        if event.name == semconv.Event.RUN_FINISHED:
            return f"{event.attributes.get(semconv.RUN_STATUS)} {event.body or ''}".rstrip()
        if event.name == semconv.Event.METRICS and isinstance(event.body, Mapping):
            shown = [f"{key} {_short(event.body[key])}" for key in self._keys if key in event.body]
            return f"step {event.attributes.get(semconv.STEP)}  " + "  ".join(shown or [f"{len(event.body)} metrics"])
        return ""

    def tick(self) -> None:
        pass

    def committed(self) -> Position | None:
        return None

    def close(self, drain: bool) -> None:
        pass


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _say(line: str) -> None:
    # Names come from configs and models: nothing in them may steer the terminal.
    printable = "".join(char if char.isprintable() else "\ufffd" for char in line)
    print(printable, file=sys.stdout, flush=True)
