"""Trajectories by what happened to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Final

from verl_otel import semconv
from verl_otel.collector.archive.model import QueryError, Trajectory, shown_status
from verl_otel.collector.archive.reader import Reader, when

# Name of a sort key -> SQL over the query's columns.
SORT_KEYS: Final = {
    "started": "start_ns",
    "duration": "end_ns - start_ns",
    "step": "step",
    "reward": "reward",
    "advantage": "advantage",
    "turns": "turns",
    "tool_calls": "tool_calls",
    "tool_errors": "tool_errors",
    "tokens": "coalesce(input_tokens, 0) + coalesce(output_tokens, 0)",
    "output_tokens": "output_tokens",
}
_OPERATORS: Final = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "=": "=", "==": "=", "!=": "<>"}

_FIELDS: Final = [
    field.name for field in fields(Trajectory) if field.name not in ("started_at", "duration_s", "status")
]

# What a root lacks (its loop raised, or the reward came later) is counted or taken from what hangs on it.
_SQL = """
WITH roots AS (
    SELECT DISTINCT ON (trace_id) * FROM (
        SELECT trace_id, span_id, run_id, attempt, step, partition, group_id, group_index, agent, reward, turns,
               tool_calls, tool_errors, input_tokens, output_tokens, finish, start_ns, end_ns, status
        FROM {spans} WHERE type = $trajectory_type AND {root_filter})
    ORDER BY trace_id, end_ns DESC
),
parts AS (
    SELECT trace_id,
           count(DISTINCT span_id) FILTER (WHERE type = $turn_type) AS turns,
           count(DISTINCT span_id) FILTER (WHERE type = $tool_type) AS tool_calls,
           count(DISTINCT span_id) FILTER (WHERE type = $tool_type AND status = 'error') AS tool_errors,
           arg_max(reward, end_ns) FILTER (WHERE type = $reward_type) AS reward
    FROM {spans}
    WHERE type IN ($turn_type, $tool_type, $reward_type) AND trace_id IN (
        SELECT trace_id FROM roots
        WHERE turns IS NULL OR tool_calls IS NULL OR tool_errors IS NULL OR reward IS NULL)
    GROUP BY trace_id
),
outcomes AS (
    SELECT trace_id,
           arg_max(outcome, time_ns) FILTER (WHERE name = $outcome_event) AS outcome,
           arg_max(advantage, time_ns) FILTER (WHERE name = $outcome_event) AS advantage,
           arg_max(staleness, time_ns) FILTER (WHERE name = $outcome_event) AS staleness,
           arg_max(step, time_ns) FILTER (WHERE name = $outcome_event) AS trained_step,
           arg_max(reward, time_ns) FILTER (WHERE name = $outcome_event) AS reward,
           arg_max(score, time_ns) FILTER (WHERE name = $evaluation_event AND evaluation = 'reward') AS score
    FROM {events} WHERE name IN ($outcome_event, $evaluation_event) AND trace_id <> ''
    GROUP BY trace_id
),
found AS (
    SELECT trace_id, run_id, attempt, step, partition, group_id, group_index, agent,
           coalesce(roots.reward, parts.reward, outcomes.score, outcomes.reward) AS reward,
           advantage, outcome, CASE WHEN outcome = 'trained' THEN trained_step END AS trained_step, staleness,
           coalesce(roots.turns, parts.turns) AS turns,
           coalesce(roots.tool_calls, parts.tool_calls) AS tool_calls,
           coalesce(roots.tool_errors, parts.tool_errors) AS tool_errors,
           input_tokens, output_tokens, finish, start_ns, end_ns, status
    FROM roots LEFT JOIN parts USING (trace_id) LEFT JOIN outcomes USING (trace_id)
)
SELECT {fields}, start_ns, end_ns, status FROM found WHERE {filter} ORDER BY {order} NULLS LAST, trace_id {limit}
"""


@dataclass(frozen=True, slots=True)
class Range:
    """Both ends are included; ``None`` is open."""

    low: int | None = None
    high: int | None = None

    @classmethod
    def parse(cls, text: str) -> Range:
        """``12``, ``3-10``, ``3-``, ``-10``; also with ``:`` or ``..``. Raises ``QueryError``."""
        match = re.fullmatch(r"(\d*)(?:(-|:|\.\.)(\d*))?", text.strip())
        if match is None or not (match[1] or match[3]):
            raise QueryError(f"step {text!r} is neither a number nor a range such as 3-10 or 3-")
        low = int(match[1]) if match[1] else None
        high = low if match[2] is None else int(match[3]) if match[3] else None
        return cls(low, high)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``reward <operator> value``."""

    operator: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Comparison:
        """``<0.5``, ``>=1``, ``=0``, ``!=0`` or ``0``. Raises ``QueryError``."""
        match = re.fullmatch(r"(<=|>=|==|!=|<|>|=)?\s*(\S+)", text.strip())
        try:
            if match is None:
                raise ValueError
            return cls(_OPERATORS[match[1] or "="], float(match[2]))
        except ValueError:
            raise QueryError(f"reward {text!r} is not a comparison such as '<0.5', '>=1' or '=0'") from None


@dataclass(frozen=True, slots=True)
class Filter:
    """What a trajectory must be like; ``None`` asks nothing.

    ``sort`` is a key of ``SORT_KEYS``, falling with ``-`` before it. ``group`` may be a prefix. No ``limit`` is all.
    """

    step: Range | None = None
    partition: str | None = None
    reward: tuple[Comparison, ...] = ()
    tool_error: bool | None = None
    failed: bool | None = None
    agent: str | None = None
    outcome: str | None = None
    group: str | None = None
    trace_id: str | None = None
    sort: str = "started"
    limit: int | None = None


def trajectories(reader: Reader, run_id: str, wanted: Filter) -> list[Trajectory]:
    """The trajectories of run ``run_id`` whose root has arrived and that pass ``wanted``. Raises ``QueryError``."""
    values: dict[str, Any] = {
        "run": run_id,
        "trajectory_type": semconv.SpanType.TRAJECTORY,
        "turn_type": semconv.SpanType.TURN,
        "tool_type": semconv.SpanType.TOOL,
        "reward_type": semconv.SpanType.REWARD,
        "outcome_event": semconv.Event.OUTCOME,
        "evaluation_event": semconv.Event.EVALUATION,
    }
    key, falling = wanted.sort.removeprefix("-"), wanted.sort.startswith("-")
    if key not in SORT_KEYS:
        raise QueryError(f"cannot sort by {key!r}; known: {', '.join(SORT_KEYS)}")
    sql = (
        _SQL.replace("{root_filter}", _root_filter(wanted, values))
        .replace("{filter}", _filter(wanted, values))
        .replace("{fields}", ", ".join(_FIELDS))
        .replace("{order}", f"({SORT_KEYS[key]}) {'DESC' if falling else 'ASC'}")
        .replace("{limit}", "" if wanted.limit is None else f"LIMIT {int(wanted.limit)}")
    )
    return [_trajectory(row) for row in reader.query(sql, values, [run_id])]


def _root_filter(wanted: Filter, values: dict[str, Any]) -> str:
    """What the root span alone decides, so that little of the archive is read for the rest."""
    terms = ["run_id = $run"]
    for column, value in (
        ("partition", wanted.partition),
        ("agent", wanted.agent),
        ("trace_id", wanted.trace_id),
    ):
        if value is not None:
            terms.append(f"{column} = ${column}")
            values[column] = value
    if wanted.group is not None:
        terms.append("starts_with(group_id, $group)")
        values["group"] = wanted.group
    if wanted.step is not None:
        for name, operator, step in (("low", ">=", wanted.step.low), ("high", "<=", wanted.step.high)):
            if step is not None:
                terms.append(f"step {operator} $step_{name}")
                values[f"step_{name}"] = step
    if wanted.failed is not None:
        terms.append(f"(status = 'error') = {wanted.failed}")
    return " AND ".join(terms)


def _filter(wanted: Filter, values: dict[str, Any]) -> str:
    terms = ["true"]
    for index, comparison in enumerate(wanted.reward):
        terms.append(f"reward {comparison.operator} $reward_{index}")
        values[f"reward_{index}"] = comparison.value
    if wanted.tool_error is not None:
        terms.append(f"(coalesce(tool_errors, 0) > 0) = {wanted.tool_error}")
    if wanted.outcome is not None:
        terms.append("outcome = $outcome")
        values["outcome"] = wanted.outcome
    return " AND ".join(terms)


def _trajectory(row: tuple[Any, ...]) -> Trajectory:
    *values, start_ns, end_ns, status = row
    known: dict[str, Any] = dict(zip(_FIELDS, values, strict=True))
    return Trajectory(
        **known, started_at=when(start_ns), duration_s=(end_ns - start_ns) / 1e9, status=shown_status(status)
    )
