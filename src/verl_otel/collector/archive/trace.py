"""One trace, whole: a trajectory with its conversation, or a training step with its phases and ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from verl_otel import semconv
from verl_otel.collector.archive import conversation
from verl_otel.collector.archive.columns import EVENT_PROMOTED, SPAN_PROMOTED
from verl_otel.collector.archive.encoding import from_text
from verl_otel.collector.archive.model import Event, QueryError, SpanNode, Trace, shown_status
from verl_otel.collector.archive.reader import Reader, when
from verl_otel.collector.archive.trajectories import Filter, trajectories

_SHOWN: Final = 5
# Python's JSON writer, and every reader of a tree, ends somewhere; a deeper span hangs on the top instead.
_DEPTH: Final = 64
_ROOTS: Final = (semconv.SpanType.TRAJECTORY, semconv.SpanType.STEP, semconv.SpanType.VALIDATION)
_OF_TRAJECTORY: Final = {semconv.SpanType.TURN, semconv.SpanType.TOOL, semconv.SpanType.REWARD}
_OF_STEP: Final = {semconv.SpanType.PHASE, semconv.SpanType.WORKER}


def find_trace(reader: Reader, wanted: str, run_id: str | None = None) -> tuple[str, str]:
    """``(trace_id, run_id)`` of a trace id or a unique prefix of one. Raises ``QueryError``."""
    prefix = wanted.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{1,32}", prefix):
        raise QueryError(f"{wanted!r} is no trace id: up to 32 of 0-9a-f, as `verl-otel trajectories` prints them")
    found = reader.query(
        "SELECT DISTINCT trace_id, run_id FROM {spans}"
        " WHERE trace_id >= $low AND trace_id < $high ORDER BY trace_id LIMIT " + str(_SHOWN + 1),
        {"low": prefix, "high": prefix + "g"},
        None if run_id is None else [run_id],
    )
    if not found:
        where = f"run {run_id!r} of {reader.home}" if run_id else str(reader.home)
        raise QueryError(f"no trace {wanted!r} in {where}; `verl-otel trajectories` lists what is there")
    if len({trace_id for trace_id, _ in found}) > 1:
        some = ", ".join(trace_id[: len(prefix) + 6] for trace_id, _ in found[:_SHOWN])
        raise QueryError(f"trace {wanted!r} is ambiguous: {some}{', …' if len(found) > _SHOWN else ''}")
    return found[0]


def find_step(reader: Reader, run_id: str, step: int) -> str:
    """The trace id of training step ``step`` (of the last attempt that did it), also before its end."""
    found = reader.query(
        "SELECT trace_id FROM {spans} WHERE run_id = $run AND"
        " ((type IN ('step', 'phase', 'worker') AND step = $step) OR (type = 'validation' AND $step = 0))"
        " ORDER BY attempt DESC, type = 'step' DESC LIMIT 1",
        {"run": run_id, "step": step},
        [run_id],
    )
    if not found:
        raise QueryError(f"run {run_id!r} has no step {step} in {reader.home}; `verl-otel runs` shows how far it is")
    return str(found[0][0])


def show(reader: Reader, wanted: str, run_id: str | None = None) -> Trace:
    """All of a trace that has arrived. Raises ``QueryError`` when ``wanted`` names none, or several."""
    trace_id, run_id = find_trace(reader, wanted, run_id)
    spans = _spans(reader, trace_id, run_id)
    _attach_events(reader, trace_id, run_id, spans)
    tree = _tree(spans)
    nodes = [node for node, _ in spans.values()]
    root = next((node for node in nodes if node.type in _ROOTS), None)
    turns = sorted(
        (node for node in nodes if node.type == semconv.SpanType.TURN),
        key=lambda node: (conversation.turn_index(node) or 0, str(node.start)),
    )
    tools = [node for node in nodes if node.type == semconv.SpanType.TOOL]
    kinds = {node.type for node in nodes}
    kind = root.type if root else "trajectory" if kinds & _OF_TRAJECTORY else "step" if kinds & _OF_STEP else ""
    top = root or (tree[0] if tree and not kind else None)
    found = trajectories(reader, run_id, Filter(trace_id=trace_id)) if kind == "trajectory" else []
    steps = (node.attributes.get(semconv.STEP) for node in nodes)
    return Trace(
        trace_id=trace_id,
        run_id=run_id,
        type=kind,
        step=next((step for step in steps if isinstance(step, int)), None),
        status=top.status if top else "running",
        started_at=(top or nodes[0]).start,
        duration_s=top.duration_s if top else None,
        trajectory=found[0] if found else None,
        spans=tree,
        messages=conversation.messages(root, turns, tools) if kind == "trajectory" else [],
        text=conversation.text(turns),
        token_ids=conversation.token_ids(turns),
        truncated=any(node.attributes.get(semconv.CONTENT_TRUNCATED) is True for node in nodes),
    )


def _attributes(text: str | None, promoted: dict[str, tuple[str, str]], values: Sequence[Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = from_text(text) or {}
    for (name, _), value in zip(promoted.values(), values, strict=True):
        if value is not None:
            attributes.setdefault(name, value)
    return attributes


def _spans(reader: Reader, trace_id: str, run_id: str) -> dict[str, tuple[SpanNode, str]]:
    """Span id -> node and parent's id, by start. Of a span that came twice the one that ended last counts."""
    columns = "span_id, parent_span_id, name, start_ns, end_ns, status, status_message, attributes, events"
    rows = reader.query(
        f"SELECT {columns}, {', '.join(SPAN_PROMOTED)} FROM {{spans}}"
        " WHERE trace_id = $trace AND run_id = $run ORDER BY start_ns, end_ns, span_id",
        {"trace": trace_id, "run": run_id},
        [run_id],
    )
    spans: dict[str, tuple[SpanNode, str]] = {}
    for span_id, parent, name, start, end, status, message, attributes, events, *promoted in rows:
        node = SpanNode(
            span_id=span_id,
            name=name,
            type=promoted[0] or "",
            start=when(start),
            duration_s=(end - start) / 1e9,
            status=shown_status(status),
            status_message=message or "",
            attributes=_attributes(attributes, SPAN_PROMOTED, promoted),
            events=[
                Event(event["name"], when(event["time_ns"]), event["attributes"]) for event in from_text(events) or []
            ],
        )
        spans[span_id] = (node, parent)
    return spans


def _attach_events(reader: Reader, trace_id: str, run_id: str, spans: dict[str, tuple[SpanNode, str]]) -> None:
    rows = reader.query(
        f"SELECT span_id, name, time_ns, attributes, body, {', '.join(EVENT_PROMOTED)} FROM {{events}}"
        " WHERE trace_id = $trace AND run_id = $run ORDER BY time_ns, event_id",
        {"trace": trace_id, "run": run_id},
        [run_id],
    )
    seen: set[str] = set()
    for span_id, name, time_ns, attributes, body, *promoted in rows:
        event_id = promoted[0]
        if span_id not in spans or event_id in seen:
            continue
        if event_id is not None:
            seen.add(event_id)
        event = Event(name, when(time_ns), _attributes(attributes, EVENT_PROMOTED, promoted), from_text(body))
        spans[span_id][0].events.append(event)


def _tree(spans: dict[str, tuple[SpanNode, str]]) -> list[SpanNode]:
    """The top nodes, with all others as their children. A span whose parent has not come (yet) is a top node."""
    children: dict[str, list[str]] = {}
    for span_id, (_, parent) in spans.items():
        children.setdefault(parent, []).append(span_id)
    tops = [span_id for span_id, (_, parent) in spans.items() if parent not in spans]
    placed: set[str] = set()
    tree: list[SpanNode] = []
    # Spans that are each other's parents are reached from no top: any of them becomes one.
    for span_id in [*tops, *spans]:
        if span_id in placed:
            continue
        tree.append(spans[span_id][0])
        placed.add(span_id)
        waiting = [(span_id, 1)]
        while waiting:
            above, depth = waiting.pop()
            for child in children.get(above, []):
                if child in placed:
                    continue
                placed.add(child)
                (spans[above][0].children if depth < _DEPTH else tree).append(spans[child][0])
                waiting.append((child, depth + 1 if depth < _DEPTH else 1))
    return tree
