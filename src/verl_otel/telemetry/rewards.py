"""A trajectory's reward: a span, and an evaluation event for it and for each of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_otel import identity, semconv
from verl_otel.telemetry import content, guard
from verl_otel.telemetry.sdk import parent
from verl_otel.telemetry.spans import set_error
from verl_otel.telemetry.trajectories import Trajectory


def record(
    trajectory: Trajectory,
    score: float | None,
    parts: Mapping[str, Any],
    start_ns: int,
    manager: str = "",
    error: BaseException | None = None,
) -> None:
    """Emit a trajectory's ``compute_reward`` span and an evaluation event for the reward and each of its parts."""
    attributes: dict[str, Any] = {
        semconv.SPAN_TYPE: semconv.SpanType.REWARD,
        semconv.STEP: trajectory.step,
        semconv.PARTITION: trajectory.partition,
    }
    if manager:
        attributes[semconv.REWARD_MANAGER] = manager
    values = {name: content.scalar(value) for name, value in parts.items()}
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values):
        guard.count("skipped.reward_parts", len(values) - len(known))
    if score is not None:
        trajectory.reward = float(score)
        attributes[semconv.REWARD] = trajectory.reward
    attributes.update({semconv.REWARD_PART_PREFIX + name: value for name, value in known.items()})
    span = trajectory.sdk.start_span(
        semconv.SPAN_REWARD,
        attributes,
        ids=identity.reward_context(trajectory.ids),
        context=parent(trajectory.ids),
        start_ns=start_ns,
    )
    if error is not None:
        set_error(span, error)
    span.end()
    trajectory.span.set_attributes(
        {
            name: value
            for name, value in attributes.items()
            if name.startswith((semconv.REWARD, semconv.REWARD_PART_PREFIX))
        }
    )
    results = ({} if trajectory.reward is None else {"reward": trajectory.reward}) | known
    for name, value in results.items():
        score_or_label: dict[str, Any] = (
            {semconv.EVALUATION_LABEL: value} if isinstance(value, str) else {semconv.EVALUATION_SCORE: float(value)}
        )
        trajectory.sdk.event(
            semconv.Event.EVALUATION,
            {
                semconv.EVENT_ID: f"evaluation/{trajectory.ids.trace_id:032x}/{name}",
                semconv.EVALUATION_NAME: name,
                semconv.STEP: trajectory.step,
                semconv.PARTITION: trajectory.partition,
                **score_or_label,
            },
            ids=trajectory.ids,
        )
