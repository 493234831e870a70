"""Whole traces to MLflow: info, tags, assessments and spans, linked to the run."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

from verl_otel import semconv
from verl_otel.collector.records import EventRecord, SpanRecord
from verl_otel.collector.sinks.base import Counters, Reject
from verl_otel.collector.sinks.mlflow import spans as converted
from verl_otel.collector.sinks.mlflow.backend import Backend, translated
from verl_otel.collector.sinks.mlflow.config import MlflowConfig
from verl_otel.collector.sinks.mlflow.runs import MlflowRun, Runs
from verl_otel.collector.sinks.mlflow.trees import Tree

_PREVIEW_CHARS = 1_000
_TAGS = {
    "verl.step": semconv.STEP,
    "verl.partition": semconv.PARTITION,
    "verl.group_id": semconv.GROUP_ID,
    "verl.group_index": semconv.GROUP_INDEX,
    "verl.sample_index": semconv.SAMPLE_INDEX,
    "verl.agent": semconv.AGENT_NAME,
    "verl.data_source": semconv.DATA_SOURCE,
    "verl.turns": semconv.TURNS,
    "verl.tool_errors": semconv.TOOL_ERRORS,
    "verl.reward": semconv.REWARD,
}
_BATCH_TRACES = 50
_LINKS_PER_CALL = 100
_REMEMBERED = 100_000


class Traces:
    """Writes trees; chooses which trajectories are written."""

    def __init__(self, backend: Backend, config: MlflowConfig, runs: Runs, counters: Counters) -> None:
        self._backend = backend
        self._config = config
        self._runs = runs
        self._counters = counters
        self._groups: dict[tuple[str, str, int], set[str]] = defaultdict(set)
        self._left_out: OrderedDict[str, None] = OrderedDict()
        self._counts: dict[tuple[str, str, int], int] = defaultdict(int)

    def write(self, trees: Sequence[Tree]) -> None:
        """Write trees, as many as may be in one call."""
        chosen = []
        for tree in trees:
            if self._wanted(tree):
                chosen.append(tree)
            else:
                self._left_out[_any_span(tree).trace_id] = None
        while len(self._left_out) > _REMEMBERED:
            self._left_out.popitem(last=False)
        self._counters.add("traces_left_out", len(trees) - len(chosen))
        by_run: dict[str, list[Tree]] = defaultdict(list)
        for tree in chosen:
            by_run[_any_span(tree).resource.run_id].append(tree)
        for group in by_run.values():
            for start in range(0, len(group), _BATCH_TRACES):
                self._write_or_split(group[start : start + _BATCH_TRACES])

    def _wanted(self, tree: Tree) -> bool:
        root = tree.root
        if root is None:
            # The end of a trace that is written already, or one whose root was lost.
            return _any_span(tree).trace_id not in self._left_out
        if root.type in (semconv.SpanType.STEP, semconv.SpanType.VALIDATION):
            return self._config.steps
        if root.type != semconv.SpanType.TRAJECTORY:
            return False
        attributes = root.attributes
        where = (root.resource.run_id, str(attributes.get(semconv.PARTITION)), int(attributes.get(semconv.STEP, 0)))
        group = str(attributes.get(semconv.GROUP_ID))
        failed = root.status == "error" or bool(attributes.get(semconv.TOOL_ERRORS))
        if group not in self._groups[where] and self._counts[where] >= self._config.trajectories_per_step:
            return failed and self._config.trajectories_per_step > 0
        # Siblings come close together but not at once: a group that was begun is kept whole.
        self._groups[where].add(group)
        self._counts[where] += 1
        return True

    def _write_or_split(self, trees: Sequence[Tree]) -> None:
        """Write; of what MLflow refuses, find the one trace that it means, and keep the others."""
        try:
            self._write(trees)
        except Reject:
            if len(trees) == 1:
                self._counters.add("refused_traces")
                return
            middle = len(trees) // 2
            self._write_or_split(trees[:middle])
            self._write_or_split(trees[middle:])

    def _write(self, trees: Sequence[Tree]) -> None:
        first = _any_span(trees[0])
        run = self._runs.of(first.resource, first.start_ns)
        entities: list[Any] = []
        ids: list[str] = []
        with translated(self._backend.uri):
            for tree in trees:
                if tree.root is not None:
                    self._backend.store.start_trace(self._info(tree, tree.root, run))
                    ids.append(_trace_id(tree.root.trace_id))
                entities += _entities(tree)
            self._backend.store.log_spans(run.experiment_id, entities)
            for start in range(0, len(ids), _LINKS_PER_CALL):
                self._backend.store.link_traces_to_run(ids[start : start + _LINKS_PER_CALL], run.run_id)
        self._counters.add("traces", len(ids))

    def _info(self, tree: Tree, root: SpanRecord, run: MlflowRun) -> Any:
        from mlflow.entities import TraceInfo, TraceLocation, TraceState

        attributes = root.attributes
        inputs = converted.chat(attributes.get(semconv.INPUT_MESSAGES))
        outputs = converted.chat(attributes.get(semconv.OUTPUT_MESSAGES))
        metadata = {"mlflow.sourceRun": run.run_id}
        usage = converted.token_usage(span for span in tree.spans.values() if span.type == semconv.SpanType.TURN)
        if usage:
            metadata["mlflow.trace.tokenUsage"] = json.dumps(usage)
        if semconv.GROUP_ID in attributes:
            metadata["mlflow.trace.session"] = str(attributes[semconv.GROUP_ID])
        tags = {tag: str(attributes[name]) for tag, name in _TAGS.items() if name in attributes}
        tags |= {"mlflow.traceName": root.name, "verl.run_id": root.resource.run_id, "verl.type": root.type}
        return TraceInfo(
            trace_id=_trace_id(root.trace_id),
            trace_location=TraceLocation.from_experiment_id(run.experiment_id),
            request_time=root.start_ns // 1_000_000,
            execution_duration=(root.end_ns - root.start_ns) // 1_000_000,
            state=TraceState.ERROR if root.status == "error" else TraceState.OK,
            request_preview=_preview(inputs) or f"{root.name} {attributes.get(semconv.STEP, '')}".strip(),
            response_preview=_preview(outputs[-1:]),
            trace_metadata=metadata,
            tags=tags,
            assessments=_assessments(root),
        )

    def outcome(self, event: EventRecord) -> None:
        """What became of a trajectory, as tags of its trace; it comes from another process, after the trace."""
        tags = {
            "verl.outcome": event.attributes.get(semconv.OUTCOME),
            "verl.trained_step": event.attributes.get(semconv.STEP),
        }
        if semconv.ADVANTAGE in event.attributes:
            tags["verl.advantage"] = event.attributes[semconv.ADVANTAGE]
        if semconv.STALENESS in event.attributes:
            tags["verl.staleness"] = event.attributes[semconv.STALENESS]
        try:
            with translated(self._backend.uri):
                for key, value in tags.items():
                    self._backend.store.set_trace_tag(_trace_id(event.trace_id), key, str(value))
        except Reject:
            # Its trajectory was not chosen, or never came.
            self._counters.add("outcomes_without_trace")


def _entities(tree: Tree) -> list[Any]:
    tools: dict[int, list[SpanRecord]] = defaultdict(list)
    for span in sorted(tree.spans.values(), key=lambda span: span.start_ns):
        if span.type == semconv.SpanType.TOOL:
            tools[int(span.attributes.get(semconv.TURN_INDEX, -1))].append(span)
    found = []
    for span in tree.spans.values():
        asked = (
            tools.get(int(span.attributes.get(semconv.TURN_INDEX, -1)), [])
            if span.type == semconv.SpanType.TURN
            else []
        )
        found.append(converted.to_mlflow(span, asked))
    return found


def _assessments(root: SpanRecord) -> list[Any]:
    from mlflow.entities import AssessmentSource, Feedback

    values: dict[str, Any] = {}
    if semconv.REWARD in root.attributes:
        values["reward"] = root.attributes[semconv.REWARD]
    for key, value in root.attributes.items():
        if key.startswith(semconv.REWARD_PART_PREFIX):
            values.setdefault(key.removeprefix(semconv.REWARD_PART_PREFIX), value)
    found = []
    for name, value in values.items():
        feedback = Feedback(
            name=name[:250],
            value=value,
            source=AssessmentSource(source_type="CODE", source_id="verl"),
            trace_id=_trace_id(root.trace_id),
            create_time_ms=root.end_ns // 1_000_000,
            last_update_time_ms=root.end_ns // 1_000_000,
            span_id=root.span_id,
        )
        # Sent again, it is the same assessment.
        feedback.assessment_id = "a-" + hashlib.blake2b(f"{root.trace_id}/{name}".encode(), digest_size=16).hexdigest()
        found.append(feedback)
    return found


def _preview(messages: Sequence[dict[str, Any]]) -> str | None:
    text = "\n".join(str(message.get("content", "")) for message in messages).strip()
    return text[:_PREVIEW_CHARS] or None


def _any_span(tree: Tree) -> SpanRecord:
    return tree.root or next(iter(tree.spans.values()))


def _trace_id(trace_id: str) -> str:
    return f"tr-{trace_id}"
