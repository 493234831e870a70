"""The archive's columns: which record fields and attributes have one, and of which type.

An attribute that has a column is taken out of the ``attributes`` JSON, unless its value is not of the column's type:
then the JSON keeps it as it was, and the column has what can be made of it or nothing.
"""

from __future__ import annotations

from typing import Final

from verl_otel import semconv

# Type -> DuckDB's name for it; the sink has pyarrow's names.
DUCKDB_TYPES: Final = {
    "str": "VARCHAR",
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "floats": "DOUBLE[]",
    "ints": "BIGINT[]",
}

_RESOURCE: Final = {
    "run_id": "str",
    "attempt": "int",
    "project": "str",
    "experiment": "str",
    "role": "str",
    "rank": "int",
}

# Column -> (attribute, type)
SPAN_PROMOTED: Final[dict[str, tuple[str, str]]] = {
    "type": (semconv.SPAN_TYPE, "str"),
    "step": (semconv.STEP, "int"),
    "partition": (semconv.PARTITION, "str"),
    "group_id": (semconv.GROUP_ID, "str"),
    "group_index": (semconv.GROUP_INDEX, "int"),
    "sample_index": (semconv.SAMPLE_INDEX, "int"),
    "data_source": (semconv.DATA_SOURCE, "str"),
    "agent": (semconv.AGENT_NAME, "str"),
    "reward": (semconv.REWARD, "float"),
    "turns": (semconv.TURNS, "int"),
    "tool_calls": (semconv.TOOL_CALLS, "int"),
    "tool_errors": (semconv.TOOL_ERRORS, "int"),
    "finish": (semconv.FINISH, "str"),
    "input_tokens": (semconv.INPUT_TOKENS, "int"),
    "output_tokens": (semconv.OUTPUT_TOKENS, "int"),
    "turn_index": (semconv.TURN_INDEX, "int"),
    "tool_name": (semconv.TOOL_NAME, "str"),
    "tool_call_id": (semconv.TOOL_CALL_ID, "str"),
    "error_type": (semconv.ERROR_TYPE, "str"),
    "phase": (semconv.PHASE_NAME, "str"),
}
EVENT_PROMOTED: Final[dict[str, tuple[str, str]]] = {
    "event_id": (semconv.EVENT_ID, "str"),
    "step": (semconv.STEP, "int"),
    "partition": (semconv.PARTITION, "str"),
    "group_id": (semconv.GROUP_ID, "str"),
    "group_index": (semconv.GROUP_INDEX, "int"),
    "outcome": (semconv.OUTCOME, "str"),
    "advantage": (semconv.ADVANTAGE, "float"),
    "reward": (semconv.REWARD, "float"),
    "staleness": (semconv.STALENESS, "float"),
    "evaluation": (semconv.EVALUATION_NAME, "str"),
    "score": (semconv.EVALUATION_SCORE, "float"),
    "run_status": (semconv.RUN_STATUS, "str"),
    "error_type": (semconv.ERROR_TYPE, "str"),
}


def _types(promoted: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {column: kind for column, (_, kind) in promoted.items()}


SPANS: Final[dict[str, str]] = {
    **_RESOURCE,
    "trace_id": "str",
    "span_id": "str",
    "parent_span_id": "str",
    "name": "str",
    "kind": "int",
    "start_ns": "int",
    "end_ns": "int",
    "status": "str",
    "status_message": "str",
    **_types(SPAN_PROMOTED),
    "attributes": "str",
    "events": "str",
    "links": "str",
    "scope": "str",
    "resource": "str",
}
EVENTS: Final[dict[str, str]] = {
    **_RESOURCE,
    "name": "str",
    "time_ns": "int",
    "trace_id": "str",
    "span_id": "str",
    "severity": "int",
    **_types(EVENT_PROMOTED),
    "attributes": "str",
    "body": "str",
    "scope": "str",
    "resource": "str",
}
METRICS: Final[dict[str, str]] = {
    **_RESOURCE,
    "name": "str",
    "kind": "str",
    "unit": "str",
    "description": "str",
    "start_ns": "int",
    "time_ns": "int",
    "value": "float",
    "count": "int",
    "sum": "float",
    "min": "float",
    "max": "float",
    "bounds": "floats",
    "buckets": "ints",
    "monotonic": "bool",
    "temporality": "int",
    "attributes": "str",
    "exemplars": "str",
    "scope": "str",
    "resource": "str",
}
COLUMNS: Final = {"spans": SPANS, "events": EVENTS, "metrics": METRICS}
