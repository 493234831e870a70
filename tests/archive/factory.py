"""Records of a small run, made by hand: 3 steps, 2 groups of 2 trajectories each, validation, one tool error, NaN."""

from __future__ import annotations

import json
import math
from array import array
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_otel import identity, semconv
from verl_otel.collector.records import Batch, EventRecord, Link, MetricPoint, Position, Resource, SpanEvent, SpanRecord
from verl_otel.collector.sinks.archive import ArchiveSink
from verl_otel.collector.sinks.base import Counters, SinkContext

START_NS = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
ODD_KEY = "val-core/tiny/add/acc/mean@1"
EXACT = 0.1 + 0.2


def resource(run_id: str, attempt: int = 1, role: str = "driver", **extra: Any) -> Resource:
    names = semconv.Resource
    return Resource(
        {
            names.RUN_ID: run_id,
            names.ATTEMPT: attempt,
            names.PROJECT: "gsm8k",
            names.EXPERIMENT: "grpo",
            names.ALGORITHM: "grpo",
            names.MODEL: "tiny",
            names.ROLE: role,
            **extra,
        }
    )


def messages(*said: tuple[str, str]) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": content}]} for role, content in said])


def pack(ids: Sequence[int]) -> str:
    return b64encode(array("I", ids).tobytes()).decode()


def hexes(ids: identity.SpanId) -> tuple[str, str]:
    return f"{ids.trace_id:032x}", f"{ids.span_id:016x}"


@dataclass
class Run:
    """A run being made; ``spans``, ``events`` and ``metrics`` grow in the order in which a run emits them."""

    run_id: str
    attempt: int = 1
    spans: list[SpanRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    metrics: list[MetricPoint] = field(default_factory=list)
    now: int = START_NS
    _made: int = 0

    def __post_init__(self) -> None:
        self.driver = resource(self.run_id, self.attempt)
        self.worker = resource(self.run_id, self.attempt, "agent_loop", **{semconv.Resource.RANK: 0})

    def span_id(self) -> str:
        self._made += 1
        return f"{self.attempt:08x}{self._made:08x}"

    def event(self, name: str, attributes: Mapping[str, Any], body: Any = None, at: tuple[str, str] = ("", "")) -> None:
        self._made += 1
        attributes = {semconv.EVENT_ID: f"{self.attempt}-{self._made}", **attributes}
        self.events.append(EventRecord(self.driver, name, self.now, attributes, body, *at))

    def begin(self) -> None:
        self.event(semconv.Event.RUN_STARTED, {}, {"config": {"trainer": {"n": 3}}, "pid": 7})

    def end(self, status: str = "finished") -> None:
        self.now += SECOND
        self.event(semconv.Event.RUN_FINISHED, {semconv.RUN_STATUS: status})

    def trajectory(
        self, step: int, uid: str, session: int, reward: float, partition: str = "train", tool_fails: bool = False
    ) -> str:
        """Two turns with a tool between; returns the trace id."""
        trace_id, root_id = hexes(identity.trajectory_context(self.run_id, self.attempt, partition, uid, session))
        common = {semconv.STEP: step, semconv.PARTITION: partition}
        start = self.now
        self.now += SECOND // 1000

        def child(kind: str, name: str, at: int, attributes: Mapping[str, Any], **more: Any) -> None:
            self.spans.append(
                SpanRecord(
                    self.worker,
                    trace_id,
                    self.span_id(),
                    root_id,
                    name,
                    start + at * SECOND // 10,
                    start + (at + 1) * SECOND // 10,
                    {semconv.SPAN_TYPE: kind, **common, **attributes},
                    **more,
                )
            )

        child(
            semconv.SpanType.TURN,
            "chat tiny",
            0,
            {
                semconv.TURN_INDEX: 0,
                semconv.TURN_INPUT_OFFSET: 0,
                semconv.TURN_INPUT_TEXT: "<user>2+2?",
                semconv.TURN_OUTPUT_TEXT: "<call>add",
                semconv.TURN_INPUT_TOKEN_IDS: pack([1, 2, 3]),
                semconv.TURN_OUTPUT_TOKEN_IDS: pack([4, 5]),
                semconv.OUTPUT_MESSAGES: messages(("assistant", "let me add")),
                semconv.INPUT_TOKENS: 3,
                semconv.OUTPUT_TOKENS: 2,
                semconv.RESPONSE_FINISH_REASONS: ["stop"],
            },
        )
        failure = {"status": "error", "status_message": "boom"} if tool_fails else {}
        child(
            semconv.SpanType.TOOL,
            "execute_tool add",
            1,
            {
                semconv.TURN_INDEX: 0,
                semconv.TOOL_NAME: "add",
                semconv.TOOL_CALL_ID: "c1",
                semconv.TOOL_ARGUMENTS: '{"a": 2, "b": 2}',
                semconv.TOOL_RESULT: "Error: boom" if tool_fails else "4",
                **({semconv.ERROR_TYPE: "ValueError"} if tool_fails else {}),
            },
            events=[SpanEvent("exception", start, {"exception.message": "boom"})] if tool_fails else (),
            **failure,
        )
        child(
            semconv.SpanType.TURN,
            "chat tiny",
            2,
            {
                semconv.TURN_INDEX: 1,
                semconv.TURN_INPUT_OFFSET: 5,
                semconv.TURN_INPUT_TEXT: "<tool>4",
                semconv.TURN_OUTPUT_TEXT: "the answer is 4",
                semconv.TURN_INPUT_TOKEN_IDS: pack([6]),
                semconv.TURN_OUTPUT_TOKEN_IDS: pack([7, 8, 9]),
                semconv.OUTPUT_MESSAGES: messages(("assistant", "the answer is 4")),
                semconv.INPUT_TOKENS: 6,
                semconv.OUTPUT_TOKENS: 3,
            },
        )
        child(semconv.SpanType.REWARD, semconv.SPAN_REWARD, 3, {semconv.REWARD: reward})
        step_link = Link(*hexes(identity.step_context(self.run_id, self.attempt, step)))
        self.spans.append(
            SpanRecord(
                self.worker,
                trace_id,
                root_id,
                "",
                "invoke_agent tool_agent",
                start,
                start + SECOND // 2,
                {
                    semconv.SPAN_TYPE: semconv.SpanType.TRAJECTORY,
                    **common,
                    semconv.GROUP_ID: uid,
                    semconv.GROUP_INDEX: session,
                    semconv.GROUP_SIZE: 2,
                    semconv.AGENT_NAME: "tool_agent",
                    semconv.INPUT_MESSAGES: messages(("system", "be brief"), ("user", "2+2?")),
                    semconv.TURNS: 2,
                    semconv.TOOL_CALLS: 1,
                    semconv.TOOL_ERRORS: int(tool_fails),
                    semconv.INPUT_TOKENS: 9,
                    semconv.OUTPUT_TOKENS: 5,
                    semconv.REWARD: reward,
                    "verl.reward.part.format": 1,
                },
                links=[step_link],
            )
        )
        at = (trace_id, root_id)
        self.event(
            semconv.Event.EVALUATION,
            {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: reward, **common},
            at=at,
        )
        if partition == "train":
            self.event(
                semconv.Event.OUTCOME,
                {
                    semconv.OUTCOME: "trained",
                    semconv.STEP: step,
                    semconv.ADVANTAGE: reward - 0.5,
                    semconv.REWARD: reward,
                },
                at=at,
            )
        return trace_id

    def step(self, step: int, scalars: Mapping[str, Any]) -> str:
        """A step with a phase and a rank's call; returns its trace id."""
        trace_id, root_id = hexes(identity.step_context(self.run_id, self.attempt, step))
        _, phase_id = hexes(identity.phase_context(self.run_id, self.attempt, step, "update_actor"))
        rank = resource(self.run_id, self.attempt, "actor", **{semconv.Resource.RANK: 1})
        common = {semconv.STEP: step}
        end = self.now + 5 * SECOND
        for owner, span_id, parent, name, attributes in (
            (rank, self.span_id(), phase_id, "update_actor", {semconv.SPAN_TYPE: semconv.SpanType.WORKER}),
            (
                self.driver,
                phase_id,
                root_id,
                "update_actor",
                {semconv.SPAN_TYPE: semconv.SpanType.PHASE, semconv.PHASE_NAME: "update_actor"},
            ),
            (self.driver, root_id, "", semconv.SPAN_STEP, {semconv.SPAN_TYPE: semconv.SpanType.STEP}),
        ):
            self.spans.append(
                SpanRecord(owner, trace_id, span_id, parent, name, self.now, end, {**common, **attributes})
            )
        self.now = end
        self.event(semconv.Event.METRICS, {semconv.STEP: step}, dict(scalars), (trace_id, root_id))
        self.metrics.append(
            MetricPoint(
                self.driver,
                "verl.actor.loss",
                "gauge",
                self.now,
                {},
                value=float(step),
                exemplars=[(1.0, self.now, trace_id, root_id)],
            )
        )
        self.metrics.append(
            MetricPoint(
                self.driver,
                semconv.Metric.STEP_DURATION,
                "histogram",
                self.now,
                {},
                count=1,
                sum=5.0,
                min=5.0,
                max=5.0,
                bounds=[1.0, 10.0],
                buckets=[0, 1, 0],
            )
        )
        return trace_id

    def batches(self, size: int = 1) -> Iterator[Batch]:
        """``size`` records a batch, a hundred bytes of spool each."""
        records: list[Any] = [*self.spans, *self.events, *self.metrics]
        for index in range(0, len(records), size):
            some = records[index : index + size]
            yield Batch(
                Position(0, index * 100),
                Position(0, (index + len(some)) * 100),
                [item for item in some if isinstance(item, SpanRecord)],
                [item for item in some if isinstance(item, EventRecord)],
                [item for item in some if isinstance(item, MetricPoint)],
            )


def small_run(run_id: str = "20260101-000000-abc123", steps: int = 3, end: str | None = "finished") -> Run:
    """Rewards fall from step to step; in step 2 the tool of group ``b``'s second trajectory fails."""
    run = Run(run_id)
    run.begin()
    run.event(semconv.Event.METRICS, {semconv.STEP: 0}, {ODD_KEY: 0.25})
    run.trajectory(0, "val0", 0, 0.25, "val")
    for step in range(1, steps + 1):
        for uid in ("a", "b"):
            for session in (0, 1):
                fails = (step, uid, session) == (2, "b", 1)
                run.trajectory(step, f"{uid}{step}", session, 0.0 if fails else 1.0 / step, tool_fails=fails)
        run.step(
            step,
            {
                "actor/loss": math.nan if step == 2 else EXACT,
                "actor/lr": -math.inf if step == 3 else 1e-300,
                "training/global_step": step,
                "ok": True,
                ODD_KEY: 0.5,
            },
        )
    if end is not None:
        run.end(end)
    return run


def sink(home: Path, **config: Any) -> ArchiveSink:
    """A sink that has not been started. Rows are visible after each batch unless ``flush_interval`` says otherwise."""
    checked = ArchiveSink.check({"flush_interval": "0", **config}, "exporters.archive")
    return ArchiveSink(checked, SinkContext("archive", home, home / "sinks" / "archive", Counters()))


def archive(home: Path, *runs: Run, size: int = 1000) -> None:
    """Write ``runs`` to the archive under ``home``, one after the other."""
    for run in runs:
        writer = sink(home)
        writer.start()
        for batch in run.batches(size):
            writer.deliver(batch)
        writer.close(drain=True)
