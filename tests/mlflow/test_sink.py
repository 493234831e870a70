"""The sink with a real MLflow: what a run's records become, once, however often they come."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.archive.factory import EXACT, ODD_KEY, Run, small_run
from verl_otel.collector.records import Position
from verl_otel.collector.sinks.base import ConfigError, Retry
from verl_otel.collector.sinks.mlflow import MlflowSink
from verl_otel.collector.sinks.mlflow.runs import flattened

TRAJECTORIES, STEPS = 13, 3


def feed(sink: MlflowSink, run: Run, size: int = 1000) -> None:
    for batch in run.batches(size):
        sink.deliver(batch)
    sink.close(drain=True)


def client(uri: str) -> Any:
    import mlflow

    mlflow.set_tracking_uri(uri)
    return mlflow.MlflowClient(uri)


def traces(found: Any, experiment: str = "gsm8k") -> dict[str, Any]:
    experiment_id = found.get_experiment_by_name(experiment).experiment_id
    return {one.info.trace_id: one for one in found.search_traces(locations=[experiment_id], max_results=200)}


def check_everything(uri: str) -> None:
    """All facts of ``small_run``, each once."""
    found = client(uri)
    (run,) = found.search_runs([found.get_experiment_by_name("gsm8k").experiment_id])
    run_id = run.info.run_id
    assert (run.info.run_name, run.info.status) == ("grpo", "FINISHED")
    assert run.data.params == {"trainer/n": "3"}
    loss = {point.step: point.value for point in found.get_metric_history(run_id, "actor/loss")}
    assert (loss[1], loss[3]) == (EXACT, EXACT)
    assert math.isnan(loss[2])
    odd = sorted((point.step, point.value) for point in found.get_metric_history(run_id, ODD_KEY.replace("@", "_at_")))
    assert odd == [(0, 0.25), (1, 0.5), (2, 0.5), (3, 0.5)]

    there = traces(found)
    roots = {key: next(span for span in one.data.spans if span.parent_id is None) for key, one in there.items()}
    assert Counter(root.name for root in roots.values()) == {
        "invoke_agent tool_agent": TRAJECTORIES,
        "training_step": STEPS,
    }
    assert all(one.info.trace_metadata["mlflow.sourceRun"] == run_id for one in there.values())
    failed = next(one for one in there.values() if one.info.tags.get("verl.tool_errors") == "1")
    assert len(failed.data.spans) == 5
    assert [span.span_type for span in failed.data.spans] == ["AGENT", "CHAT_MODEL", "TOOL", "CHAT_MODEL", "EVALUATOR"]
    root, turn, tool = failed.data.spans[:3]
    assert root.inputs == {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}]}
    assert turn.outputs["choices"][0]["message"]["content"] == "let me add"
    assert turn.outputs["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"
    assert (tool.inputs, tool.outputs) == ({"a": 2, "b": 2}, "Error: boom")
    assert tool.status.status_code.value == "ERROR"
    assert [event.name for event in tool.events] == ["exception"]
    assert failed.info.token_usage["total_tokens"] == 14
    assert {one.name: one.value for one in failed.info.assessments} == {"reward": 0.0, "format": 1}
    tags = failed.info.tags
    assert (tags["verl.step"], tags["verl.partition"], tags["verl.group_id"]) == ("2", "train", "b2")
    assert (tags["verl.outcome"], tags["verl.trained_step"], tags["verl.advantage"]) == ("trained", "2", "-0.5")
    assert failed.info.trace_metadata["mlflow.trace.session"] == "b2"


def test_a_run_becomes_a_run_with_traces(make: Callable[..., MlflowSink], tmp_path: Path) -> None:
    feed(make(), small_run())
    check_everything(f"sqlite:///{tmp_path}/mlflow.db")


def test_the_same_records_again_change_nothing(make: Callable[..., MlflowSink], tmp_path: Path) -> None:
    sink = make()
    for batch in list(small_run().batches(7)) * 2:
        sink.deliver(batch)
    sink.close(drain=True)
    feed(make(), small_run())
    check_everything(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("killed_after", [3, 9, 15])
def test_a_worker_that_was_killed_goes_on_from_what_was_committed(
    make: Callable[..., MlflowSink], tmp_path: Path, killed_after: int
) -> None:
    batches = list(small_run().batches(5))
    first = make()
    for batch in batches[:killed_after]:
        first.deliver(batch)
    place = first.committed() or Position(0, 0)
    assert place <= batches[killed_after - 1].end
    second = make()
    for batch in batches:
        if batch.start >= place:
            second.deliver(batch)
    second.close(drain=True)
    check_everything(f"sqlite:///{tmp_path}/mlflow.db")


def test_spans_that_are_held_hold_the_place(make: Callable[..., MlflowSink]) -> None:
    sink = make()
    batches = list(small_run().batches(1))
    sink.deliver(batches[0])
    assert sink.committed() == batches[0].start
    sink.close(drain=True)


def test_the_same_facts_over_a_real_server(make: Callable[..., MlflowSink], server: str) -> None:
    feed(make(tracking_uri=server), small_run())
    feed(make(tracking_uri=server), small_run())
    check_everything(server)


def test_a_later_attempt_goes_on_in_the_same_run(make: Callable[..., MlflowSink], tmp_path: Path) -> None:
    feed(make(), small_run(end="crashed"))
    found = client(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = found.get_experiment_by_name("gsm8k").experiment_id
    assert found.search_runs([experiment])[0].info.status == "FAILED"
    again = Run("20260101-000000-abc123", attempt=2)
    again.begin()
    again.step(4, {"actor/loss": 4.0})
    feed(make(), again)
    (run,) = found.search_runs([experiment])
    assert run.info.status == "RUNNING"
    assert run.data.tags["verl_otel.attempt"] == "2"
    assert run.data.metrics["actor/loss"] == 4.0


def test_whole_groups_are_chosen_within_the_budget_and_failures_beyond_it(
    make: Callable[..., MlflowSink], tmp_path: Path
) -> None:
    feed(make(trajectories_per_step=2), small_run())
    chosen = [one.info.tags for one in traces(client(f"sqlite:///{tmp_path}/mlflow.db")).values()]
    groups = Counter(tags["verl.group_id"] for tags in chosen if tags.get("verl.partition") == "train")
    assert groups == {"a1": 2, "a2": 2, "a3": 2, "b2": 1}


def test_generations_become_a_table_of_their_step(make: Callable[..., MlflowSink], tmp_path: Path) -> None:
    run = Run("r")
    for index in range(3):
        attributes = {"rl.loop.iteration": 2, "verl.generation.index": index}
        run.event("verl.generation", attributes, {"input": "2+2?", "output": str(index), "score": index / 2})
    # In one batch, then one by one to a worker that was started anew
    feed(make(), run)
    feed(make(), run, size=1)
    found = client(f"sqlite:///{tmp_path}/mlflow.db")
    (made,) = found.search_runs([found.get_experiment_by_name("gsm8k").experiment_id])
    (entry,) = json.loads(made.data.tags["mlflow.loggedArtifacts"])
    assert entry == {"path": "val_generations/step_000002.json", "type": "table"}
    table = json.loads(Path(found.download_artifacts(made.info.run_id, entry["path"], str(tmp_path))).read_text())
    assert table["columns"] == ["index", "step", "input", "output", "score", "ground_truth"]
    assert [row[3:5] for row in table["data"]] == [["0", 0.0], ["1", 0.5], ["2", 1.0]]


def test_a_key_that_mlflow_refuses_does_not_take_the_others_with_it(
    make: Callable[..., MlflowSink], tmp_path: Path
) -> None:
    run = Run("r")
    values = {"a@b": 1.0, "a_at_b": 2.0, "..": 3.0, "é(x)": 4.0, "text": "words", "k" * 400: 5.0, "a//b": 6.0}
    run.event("verl.metrics", {"rl.loop.iteration": 1}, values)
    feed(make(), run)
    found = client(f"sqlite:///{tmp_path}/mlflow.db")
    (made,) = found.search_runs([found.get_experiment_by_name("gsm8k").experiment_id])
    metrics = made.data.metrics
    assert metrics["a_at_b"] == 1.0
    assert metrics["a_at_b_2"] == 2.0
    assert set(metrics.values()) >= {1.0, 2.0, 4.0, 5.0, 6.0}


def test_keys_keep_their_names_over_a_restart(make: Callable[..., MlflowSink], tmp_path: Path) -> None:
    for step, keys in enumerate((("a@b", "a_at_b"), ("a_at_b", "a@b")), start=1):
        run = Run("r")
        run.event("verl.metrics", {"rl.loop.iteration": step}, {key: float(len(key)) for key in keys})
        feed(make(), run)
    found = client(f"sqlite:///{tmp_path}/mlflow.db")
    (made,) = found.search_runs([found.get_experiment_by_name("gsm8k").experiment_id])
    values = {
        key: [point.value for point in found.get_metric_history(made.info.run_id, key)]
        for key in ("a_at_b", "a_at_b_2")
    }
    assert values == {"a_at_b": [3.0, 3.0], "a_at_b_2": [6.0, 6.0]}


def test_one_trace_that_is_refused_does_not_hold_up_the_others(
    make: Callable[..., MlflowSink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_otel.collector.sinks.base import Reject
    from verl_otel.collector.sinks.mlflow import traces as module

    whole = module.Traces._info

    def refuses_one(self: Any, tree: Any, root: Any, run: Any) -> Any:
        if root.attributes.get("verl.group.id") == "a2":
            raise Reject("never")
        return whole(self, tree, root, run)

    monkeypatch.setattr(module.Traces, "_info", refuses_one)
    sink = make()
    feed(sink, small_run())
    assert sink._context.counters.values["refused_traces"] == 2
    assert len(traces(client(f"sqlite:///{tmp_path}/mlflow.db"))) == TRAJECTORIES + STEPS - 2


def test_a_server_that_is_not_there_is_tried_again_later(make: Callable[..., MlflowSink]) -> None:
    with pytest.raises(Retry) as caught:
        make(tracking_uri="http://127.0.0.1:9")
    assert "127.0.0.1:9" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"trackin_uri": "x"}, "exporters.mlflow.trackin_uri: unknown key; did you mean 'tracking_uri'?"),
        ({"trajectories_per_step": -1}, "must be a whole number of trajectories"),
        ({"steps": "yes"}, "must be true or false"),
        ({"timeout": "soon"}, "is no time in seconds"),
    ],
)
def test_a_wrong_key_or_value_is_said_with_its_path(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MlflowSink.check(config, "exporters.mlflow")
    assert said in str(caught.value)


def test_configs_are_flattened_as_verl_does() -> None:
    assert dict(flattened({"a": {"b": [1, {"c": None}]}, "d": {}})) == {
        "a/b/list_len": "2",
        "a/b/0": "1",
        "a/b/1/c": "None",
        "d": "{}",
    }
