"""What the queries say about a small run whose records went through the real sink."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.archive.factory import EXACT, ODD_KEY, Run, archive, resource, small_run
from verl_otel import semconv
from verl_otel.collector.archive.metrics import metrics
from verl_otel.collector.archive.model import QueryError, ToolCall
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.archive.runs import runs
from verl_otel.collector.archive.trace import find_step, show
from verl_otel.collector.archive.trajectories import SORT_KEYS, Comparison, Filter, Range, trajectories
from verl_otel.collector.records import EventRecord, SpanRecord

RUN = "20260101-000000-abc123"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    home = tmp_path_factory.mktemp("home [1]*")
    archive(home, small_run(RUN))
    return Reader(home)


def test_a_run_is_summed_up(reader: Reader) -> None:
    (run,) = runs(reader)
    assert (run.run_id, run.project, run.experiment, run.attempt) == (RUN, "gsm8k", "grpo", 1)
    assert (run.status, run.steps, run.last_step, run.trajectories) == ("finished", 3, 3, 13)
    assert (run.model, run.algorithm) == ("tiny", "grpo")
    assert run.started_at is not None
    assert run.started_at.isoformat() == "2026-09-21T14:13:20+00:00"


@pytest.mark.parametrize("status", ["finished", "failed", "crashed", "interrupted", None])
def test_a_runs_status_is_that_of_its_last_attempt(tmp_path: Path, status: str | None) -> None:
    first = small_run(RUN, steps=1, end="crashed")
    second = Run(RUN, attempt=2, now=first.now + 10**9)
    second.begin()
    if status:
        second.end(status)
    archive(tmp_path, first, second)
    (run,) = runs(Reader(tmp_path))
    assert (run.attempt, run.status, run.steps) == (2, status or "running", 1)


def test_all_trajectories_of_a_run(reader: Reader) -> None:
    found = trajectories(reader, RUN, Filter())
    assert len(found) == 13
    first = next(item for item in found if item.partition == "train")
    assert (first.step, first.group_id, first.group_index, first.agent) == (1, "a1", 0, "tool_agent")
    assert (first.reward, first.advantage, first.outcome, first.trained_step) == (1.0, 0.5, "trained", 1)
    assert (first.turns, first.tool_calls, first.tool_errors) == (2, 1, 0)
    assert (first.input_tokens, first.output_tokens, first.duration_s, first.status) == (9, 5, 0.5, "ok")


def test_a_validation_trajectory_has_no_outcome(reader: Reader) -> None:
    (found,) = trajectories(reader, RUN, Filter(partition="val"))
    assert (found.step, found.reward, found.outcome, found.advantage, found.trained_step) == (0, 0.25, None, None, None)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (Filter(step=Range(2, 2)), 4),
        (Filter(step=Range(2)), 8),
        (Filter(step=Range(high=1)), 5),
        (Filter(partition="train"), 12),
        (Filter(reward=(Comparison.parse("<0.5"),)), 6),
        (Filter(reward=(Comparison.parse(">=0.3"), Comparison.parse("<1"))), 7),
        (Filter(reward=(Comparison.parse("=1"),)), 4),
        (Filter(tool_error=True), 1),
        (Filter(tool_error=False), 12),
        (Filter(failed=True), 0),
        (Filter(agent="tool_agent"), 13),
        (Filter(agent="x' OR '1'='1"), 0),
        (Filter(outcome="trained"), 12),
        (Filter(outcome="stale"), 0),
        (Filter(group="b"), 6),
        (Filter(group="b2"), 2),
        (Filter(limit=5), 5),
    ],
)
def test_filters(reader: Reader, wanted: Filter, count: int) -> None:
    assert len(trajectories(reader, RUN, wanted)) == count


@pytest.mark.parametrize("key", SORT_KEYS)
def test_every_sort_key_sorts(reader: Reader, key: str) -> None:
    rising = trajectories(reader, RUN, Filter(sort=key))
    falling = trajectories(reader, RUN, Filter(sort=f"-{key}"))
    assert len(rising) == len(falling) == 13
    if key == "reward":
        rewards = [item.reward or 0.0 for item in rising]
        assert rewards == sorted(rewards)
        assert [item.reward for item in falling] == rewards[::-1]


def test_an_unknown_sort_key_is_a_mistake(reader: Reader) -> None:
    with pytest.raises(QueryError, match="cannot sort by 'x'; known: started"):
        trajectories(reader, RUN, Filter(sort="x"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", Range(3, 3)), ("3-10", Range(3, 10)), ("3-", Range(3)), ("-4", Range(None, 4)), ("3:5", Range(3, 5))],
)
def test_step_ranges(text: str, expected: Range) -> None:
    assert Range.parse(text) == expected


@pytest.mark.parametrize("text", ["", "-", "x", "3-x", "1.5"])
def test_what_is_no_step_range_is_a_mistake(text: str) -> None:
    with pytest.raises(QueryError, match="neither a number nor a range"):
        Range.parse(text)


@pytest.mark.parametrize("text", ["", "<", "<x", "~1", "1 2"])
def test_what_is_no_comparison_is_a_mistake(text: str) -> None:
    with pytest.raises(QueryError, match="is not a comparison"):
        Comparison.parse(text)


def test_a_trajectory_with_a_failed_tool_is_shown_whole(reader: Reader) -> None:
    (wanted,) = trajectories(reader, RUN, Filter(tool_error=True))
    trace = show(reader, wanted.trace_id[:10])
    assert trace.trajectory == wanted
    assert [(item.role, item.content) for item in trace.messages] == [
        ("system", "be brief"),
        ("user", "2+2?"),
        ("assistant", "let me add"),
        ("tool", "Error: boom"),
        ("assistant", "the answer is 4"),
    ]
    assert trace.messages[2].tool_calls == [ToolCall("c1", "add", '{"a": 2, "b": 2}')]
    assert (trace.messages[3].name, trace.messages[3].tool_call_id) == ("add", "c1")
    assert trace.messages[3].error == "ValueError"
    assert trace.text == "<user>2+2?<call>add<tool>4the answer is 4"
    assert trace.token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    (root,) = trace.spans
    assert [child.type for child in root.children] == ["turn", "tool", "turn", "reward"]
    assert root.children[1].status == "error"
    assert root.children[1].events[0].name == "exception"
    assert [event.name for event in root.events] == [semconv.Event.EVALUATION, semconv.Event.OUTCOME]


def test_attributes_come_back_as_they_were(reader: Reader) -> None:
    expected = next(span for span in small_run(RUN).spans if span.type == semconv.SpanType.TRAJECTORY)
    (root,) = show(reader, expected.trace_id).spans
    assert root.attributes == dict(expected.attributes)
    assert type(root.attributes["verl.reward.part.format"]) is int


def test_an_attribute_of_another_type_than_its_column_is_kept(tmp_path: Path) -> None:
    odd = {semconv.REWARD: 1, semconv.GROUP_ID: 7, semconv.GROUP_INDEX: "x", semconv.STEP: 2.5, semconv.TURNS: True}
    run = Run(RUN)
    run.spans.append(SpanRecord(resource(RUN), "a" * 32, "b" * 16, "", "x", 1, 2, odd))
    archive(tmp_path, run)
    reader = Reader(tmp_path)
    (span,) = show(reader, "aa").spans
    assert {key: (type(value), value) for key, value in span.attributes.items()} == {
        key: (type(value), value) for key, value in odd.items()
    }
    assert reader.query("SELECT reward, group_id, group_index, step, turns FROM {spans}") == [
        (1.0, "7", None, None, None)
    ]


def test_a_step_is_shown_with_phases_ranks_and_metrics(reader: Reader) -> None:
    trace = show(reader, find_step(reader, RUN, 2))
    assert (trace.type, trace.step, trace.trajectory, trace.messages, trace.text) == ("step", 2, None, [], None)
    (step,) = trace.spans
    assert (step.name, step.children[0].name, step.children[0].children[0].type) == (
        "training_step",
        "update_actor",
        "worker",
    )
    assert math.isnan(step.events[0].body["actor/loss"])


def test_metrics_are_exact(reader: Reader) -> None:
    found = {(item.step, item.key): item.value for item in metrics(reader, RUN)}
    assert found[1, "actor/loss"] == EXACT
    assert math.isnan(float(found[2, "actor/loss"]))
    assert found[3, "actor/lr"] == -math.inf
    assert found[1, "actor/lr"] == 1e-300
    assert found[0, ODD_KEY] == 0.25
    assert found[1, "ok"] is True
    assert type(found[1, "training/global_step"]) is int


def test_metrics_by_key_and_step(reader: Reader) -> None:
    found = metrics(reader, RUN, "val-core/*@1", Range(1, 2))
    assert [(item.step, item.key) for item in found] == [(1, ODD_KEY), (2, ODD_KEY)]


def test_a_step_done_again_has_the_later_value(tmp_path: Path) -> None:
    first = small_run(RUN, steps=1, end=None)
    again = Run(RUN, attempt=2, now=first.now - 10**9)
    again.step(1, {"actor/loss": 7.0})
    archive(tmp_path, again, first)
    found = {item.key: item.value for item in metrics(Reader(tmp_path), RUN, steps=Range(1, 1))}
    assert (found["actor/loss"], found["ok"]) == (7.0, True)


def test_records_that_were_sent_twice_are_shown_once(tmp_path: Path) -> None:
    run = small_run(RUN)
    archive(tmp_path, run, run)
    reader = Reader(tmp_path)
    assert runs(reader)[0].trajectories == 13
    found = trajectories(reader, RUN, Filter(partition="train"))
    assert len(found) == 12
    assert (found[0].turns, found[0].tool_calls) == (2, 1)
    (root,) = show(reader, found[0].trace_id).spans
    assert (len(root.children), len(root.events)) == (4, 2)
    assert len(metrics(reader, RUN)) == len(metrics(reader, RUN, "*"))
    assert len([item for item in metrics(reader, RUN) if item.key == "ok"]) == 3


def test_what_a_root_lacks_is_counted_from_its_parts(tmp_path: Path) -> None:
    """The loop raised, so that the root ended without its sums; the reward came from a reward worker."""
    run = small_run(RUN, steps=2)
    dropped = {semconv.TURNS, semconv.TOOL_CALLS, semconv.TOOL_ERRORS, semconv.REWARD}
    run.spans = [
        SpanRecord(
            *(getattr(span, name) for name in ("resource", "trace_id", "span_id", "parent_span_id", "name")),
            span.start_ns,
            span.end_ns,
            {key: value for key, value in span.attributes.items() if key not in dropped}
            if span.type == semconv.SpanType.TRAJECTORY
            else span.attributes,
            status="error" if span.type == semconv.SpanType.TRAJECTORY else span.status,
        )
        for span in run.spans
    ]
    archive(tmp_path, run, run)
    found = trajectories(Reader(tmp_path), RUN, Filter(tool_error=True, failed=True))
    assert [(item.turns, item.tool_calls, item.tool_errors, item.reward) for item in found] == [(2, 1, 1, 0.0)]


@pytest.mark.parametrize("arrived", range(1, 8))
def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path, arrived: int) -> None:
    run = Run(RUN)
    trace_id = run.trajectory(1, "a", 0, 1.0)
    run.step(1, {"k": 1})
    run.spans = run.spans[:arrived]
    run.events = []
    archive(tmp_path, run)
    reader = Reader(tmp_path)
    (listed,) = runs(reader)
    assert listed.status == "running"
    trace = show(reader, trace_id)
    assert trace.type == "trajectory"
    assert (trace.trajectory is not None) == (arrived >= 5)
    assert trace.status == ("ok" if arrived >= 5 else "running")
    assert trace.messages[-1].role == ("assistant" if arrived != 2 else "tool")
    if arrived > 5:
        assert find_step(reader, RUN, 1)


def test_a_tool_that_arrives_before_its_turn_is_shown(tmp_path: Path) -> None:
    run = Run(RUN)
    trace_id = run.trajectory(1, "a", 0, 1.0)
    run.spans = [span for span in run.spans if span.type == semconv.SpanType.TOOL]
    run.events = []
    archive(tmp_path, run)
    trace = show(Reader(tmp_path), trace_id)
    assert [(item.role, item.content) for item in trace.messages] == [("assistant", ""), ("tool", "4")]
    assert trace.text is None


def test_spans_that_are_each_others_parents_are_all_shown(tmp_path: Path) -> None:
    owner = resource(RUN)
    deep = [(f"{n:016x}", f"{n - 1:016x}" if n > 1 else "") for n in range(1, 2000)]
    ids = [("b" * 16, "c" * 16), ("c" * 16, "b" * 16), ("d" * 16, "d" * 16), *deep]
    run = Run(RUN)
    run.spans = [SpanRecord(owner, "f" * 32, own, parent, "x", 1, 2, {}) for own, parent in ids]
    archive(tmp_path, run)
    waiting = list(show(Reader(tmp_path), "f" * 32).spans)
    seen = []
    while waiting:
        node = waiting.pop()
        seen.append(node.span_id)
        waiting += node.children
    assert sorted(seen) == sorted(own for own, _ in ids)


def test_names_of_runs(tmp_path: Path) -> None:
    archive(tmp_path, small_run("run-a1", 1), small_run("run-a2", 1), small_run("other", 1))
    reader = Reader(tmp_path)
    assert reader.resolve_run("run-a1") == "run-a1"
    assert reader.resolve_run("o") == "other"
    with pytest.raises(QueryError, match=r"run 'run' is ambiguous: 'run-a1', 'run-a2'"):
        reader.resolve_run("run")
    with pytest.raises(QueryError, match=r"no run 'run-b1' .* nearest: 'run-a"):
        reader.resolve_run("run-b1")


def test_the_latest_run_is_the_one_begun_last(tmp_path: Path) -> None:
    late = Run("a-late", now=small_run().now + 10**9)
    late.begin()
    archive(tmp_path, late, small_run("z-early", 1))
    reader = Reader(tmp_path)
    assert reader.resolve_run("latest") == "a-late"
    assert [run.run_id for run in runs(reader)] == ["a-late", "z-early"]


def test_records_of_no_run_are_kept_apart(tmp_path: Path) -> None:
    stray = Run("")
    stray.events = [EventRecord(resource(""), "", 1, {}, "hello")]
    archive(tmp_path, stray)
    reader = Reader(tmp_path)
    assert reader.run_ids() == ["_unknown"]
    assert runs(reader) == []


@pytest.mark.parametrize(
    ("wanted", "problem"), [("zz", "is no trace id"), ("0" * 33, "is no trace id"), ("0" * 32, "no trace")]
)
def test_a_trace_that_is_not_there_is_a_mistake(reader: Reader, wanted: str, problem: str) -> None:
    with pytest.raises(QueryError, match=problem):
        show(reader, wanted)


def test_an_ambiguous_trace_is_a_mistake(tmp_path: Path) -> None:
    run = Run(RUN)
    run.spans = [SpanRecord(resource(RUN), f"ab{n}" + "0" * 29, "1" * 16, "", "x", 1, 2, {}) for n in range(9)]
    archive(tmp_path, run)
    with pytest.raises(QueryError, match=r"trace 'ab' is ambiguous: ab0.*, ab1.*…"):
        show(Reader(tmp_path), "ab")


def test_an_empty_home_has_no_runs_and_no_home_is_a_mistake(tmp_path: Path) -> None:
    assert runs(Reader(tmp_path)) == []
    with pytest.raises(QueryError, match="no run is in the archive yet"):
        Reader(tmp_path).resolve_run("latest")
    with pytest.raises(QueryError, match="no such folder"):
        Reader(tmp_path / "nowhere")
