"""A trajectory's tool calls, with failures as failures."""

from __future__ import annotations

import time
from typing import Any

from verl_otel import semconv
from verl_otel.telemetry.sdk import parent
from verl_otel.telemetry.spans import set_error, set_refused, span_ids
from verl_otel.telemetry.trajectories import Trajectory


class ToolCall:
    """One open tool call of a trajectory."""

    def __init__(self, trajectory: Trajectory, name: str, arguments: str, call_id: str | None) -> None:
        self.trajectory = trajectory
        self.name = name
        self.error_type = ""
        self.returned = False
        self._start_ns = time.time_ns()
        turn = max(0, trajectory.turns - 1)
        self.id = call_id or f"call_{turn}_{trajectory.tools_since_turn}"
        attributes: dict[str, Any] = {
            semconv.SPAN_TYPE: semconv.SpanType.TOOL,
            semconv.OPERATION: "execute_tool",
            semconv.TOOL_NAME: name,
            semconv.TOOL_TYPE: "function",
            semconv.TOOL_CALL_ID: self.id,
            semconv.TURN_INDEX: turn,
            semconv.STEP: trajectory.step,
            semconv.PARTITION: trajectory.partition,
        }
        trajectory.put_text(attributes, semconv.TOOL_ARGUMENTS, arguments)
        trajectory.tool_calls += 1
        trajectory.tools_since_turn += 1
        self.span = trajectory.sdk.start_span(
            f"execute_tool {name}", attributes, context=parent(trajectory.ids), start_ns=self._start_ns
        )

    def fail(self, error: BaseException) -> None:
        """The tool raised ``error``."""
        self.error_type = type(error).__name__
        set_error(self.span, error)

    def refuse(self, kind: str, message: str) -> None:
        """The tool could not be called, or its failure came back as ``message``."""
        self.error_type = kind
        set_refused(self.span, kind, message)

    def finish(self, result: str, reward: float | None = None) -> None:
        """End the call with the text that the model gets to see."""
        trajectory = self.trajectory
        if self.error_type:
            trajectory.tool_errors += 1
        trajectory.tool_messages.append({"role": "tool", "tool_call_id": self.id, "content": result})
        attributes: dict[str, Any] = {}
        trajectory.put_text(attributes, semconv.TOOL_RESULT, result)
        if reward is not None:
            attributes[semconv.TOOL_REWARD] = float(reward)
        self.span.set_attributes(attributes)
        end_ns = time.time_ns()
        self.span.end(end_ns)
        labels = {semconv.TOOL_NAME: self.name, semconv.ERROR_TYPE: self.error_type or ""}
        labels = {name: value for name, value in labels.items() if value}
        seconds = (end_ns - self._start_ns) / 1e9
        trajectory.sdk.histogram(semconv.Metric.TOOL_DURATION, seconds, labels, span_ids(self.span), "s")
