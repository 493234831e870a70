"""What the queries answer with. Field names are the keys of the commands' JSON; times are UTC, durations seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


class QueryError(ValueError):
    """A question that cannot be answered as put: an unknown or ambiguous name, a filter that is none. One line."""


class Unreadable(Exception):
    """The archive's files cannot be read: one is broken, or the disk does not answer. One line."""


def shown_status(status: str) -> str:
    """``ok``, ``error`` or ``running``: OpenTelemetry leaves what went well ``unset``, which says nothing to people."""
    return "ok" if status == "unset" else status


@dataclass(frozen=True, slots=True)
class Run:
    """``attempt`` is the last one, ``status`` its; ``steps`` and ``trajectories`` count over all attempts."""

    run_id: str
    project: str
    experiment: str
    attempt: int
    status: str
    started_at: datetime | None
    last_seen_at: datetime | None
    steps: int
    last_step: int | None
    trajectories: int
    model: str
    algorithm: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished trajectory. ``step`` asked for it, ``trained_step`` trained on it; ``None`` is not known (yet)."""

    trace_id: str
    run_id: str
    attempt: int
    step: int | None
    partition: str | None
    group_id: str | None
    group_index: int | None
    agent: str | None
    reward: float | None
    advantage: float | None
    outcome: str | None
    trained_step: int | None
    staleness: float | None
    turns: int | None
    tool_calls: int | None
    tool_errors: int | None
    input_tokens: int | None
    output_tokens: int | None
    finish: str | None
    started_at: datetime | None
    duration_s: float | None
    status: str


@dataclass(frozen=True, slots=True)
class Event:
    """A span's own event, or a log record that was emitted in its context (which may have a ``body``)."""

    name: str
    time: datetime | None
    attributes: dict[str, Any]
    body: Any = None


@dataclass(slots=True)
class SpanNode:
    span_id: str
    name: str
    type: str
    start: datetime | None
    duration_s: float | None
    status: str
    status_message: str
    attributes: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    children: list[SpanNode] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Message:
    """``error`` is set on the answer of a tool that failed."""

    role: str
    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    name: str | None = None
    tool_call_id: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything of one trace. ``trajectory`` is set for a trajectory whose root has arrived.

    ``text`` and ``token_ids`` are the whole sequence, ``None`` where the parts do not give it exactly. ``truncated``:
    some content was longer than the limit and was cut.
    """

    trace_id: str
    run_id: str
    type: str
    step: int | None
    status: str
    started_at: datetime | None
    duration_s: float | None
    trajectory: Trajectory | None
    spans: list[SpanNode]
    messages: list[Message]
    text: str | None
    token_ids: list[int] | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One scalar under verl's exact key."""

    step: int
    key: str
    value: bool | int | float | str
