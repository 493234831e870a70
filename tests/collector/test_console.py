from __future__ import annotations

from pathlib import Path

import pytest

from verl_otel import semconv
from verl_otel.collector.records import Batch, EventRecord, Position, Resource, SpanRecord
from verl_otel.collector.sinks.base import ConfigError, Counters, SinkContext
from verl_otel.collector.sinks.console import ConsoleSink

RESOURCE = Resource({semconv.Resource.RUN_ID: "run-1", semconv.Resource.PROJECT: "p", semconv.Resource.EXPERIMENT: "e"})


def shown(capsys: pytest.CaptureFixture[str], *events: EventRecord, spans: tuple[SpanRecord, ...] = ()) -> list[str]:
    context = SinkContext("console", Path(), Path(), Counters())
    sink = ConsoleSink(ConsoleSink.check({}, "exporters.console"), context)
    sink.deliver(Batch(Position(0, 0), Position(0, 1), spans=spans, events=events))
    return capsys.readouterr().out.splitlines()


def test_a_run_its_steps_and_its_trajectories_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    attributes = {
        semconv.SPAN_TYPE: semconv.SpanType.TRAJECTORY,
        semconv.PARTITION: "train",
        semconv.STEP: 3,
    }
    spans = tuple(SpanRecord(RESOURCE, "1" * 32, f"{n:016x}", "", "invoke_agent", 1, 2, attributes) for n in range(4))
    metrics = {"critic/score/mean": 0.123456, "timing_s/step": float("nan"), "unnamed": 1}
    lines = shown(
        capsys,
        EventRecord(RESOURCE, semconv.Event.RUN_STARTED, 1, {}),
        EventRecord(RESOURCE, semconv.Event.METRICS, 2, {semconv.STEP: 3}, metrics),
        EventRecord(RESOURCE, semconv.Event.RUN_FINISHED, 3, {semconv.RUN_STATUS: "failed"}, "out of \x1b[31mmemory\n"),
        EventRecord(RESOURCE, "", 4, {}, "any log line"),
        spans=spans,
    )
    assert lines == [
        "run-1  step 3  4 train trajectories",
        "run-1  started: p/e, attempt 1",
        "run-1  step 3  critic/score/mean 0.1235  timing_s/step nan",
        "run-1  failed out of \ufffd[31mmemory",
    ]


@pytest.mark.parametrize("config", [{"metric": []}, {"metrics": "loss"}])
def test_a_wrong_key_is_said(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"exporters\.console\.metric"):
        ConsoleSink.check(config, "exporters.console")
