"""The same training, in MLflow."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.verl.conftest import STEPS
from tests.verl.rig import Training

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def client(trained: Training) -> Any:
    mlflow.set_tracking_uri(f"sqlite:///{trained.home}/mlflow.db")
    return mlflow.MlflowClient()


@pytest.fixture(scope="module")
def run(client: Any) -> Any:
    experiment = client.get_experiment_by_name("tool-agent")
    (found,) = client.search_runs([experiment.experiment_id])
    return found


@pytest.fixture(scope="module")
def traces(client: Any, run: Any) -> list[Any]:
    found: list[Any] = []
    token = None
    while True:
        page = client.search_traces(locations=[run.info.experiment_id], max_results=100, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def test_the_run_has_params_status_and_every_metric_at_its_step(trained: Training, client: Any, run: Any) -> None:
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "grpo-cpu"
    assert run.data.params["algorithm/adv_estimator"] == "grpo"
    wanted: dict[str, list[tuple[int, float]]] = {}
    for step, data in trained.scalars().items():
        for key, value in data.items():
            wanted.setdefault(key.replace("@", "_at_"), []).append((step, float(value)))
    for key, points in wanted.items():
        history = sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, key))
        assert [step for step, _ in history] == [step for step, _ in sorted(points)], key
        assert [value for _, value in history] == pytest.approx([value for _, value in sorted(points)], nan_ok=True), (
            key
        )


def test_there_is_a_trace_for_each_step_and_trajectory(trained: Training, traces: list[Any]) -> None:
    kinds = Counter(trace.data.spans and _root(trace).name for trace in traces)
    assert kinds["training_step"] == STEPS
    assert kinds["invoke_agent tool_agent"] == trained.ask("runs")[0]["trajectories"]


def test_trajectories_have_the_same_trees_rewards_and_tokens_as_the_archive(
    trained: Training, traces: list[Any]
) -> None:
    by_id = {trace.info.trace_id.removeprefix("tr-"): trace for trace in traces}
    for item in trained.ask("trajectories", "--limit", "0"):
        trace = by_id[item["trace_id"]]
        spans = trace.data.spans
        assert len(spans) == 1 + item["turns"] + item["tool_calls"] + 1
        assert sum(span.status.status_code.value == "ERROR" for span in spans) == item["tool_errors"]
        feedback = {one.name: one.value for one in trace.info.assessments}
        assert feedback["reward"] == pytest.approx(item["reward"])
        assert trace.info.token_usage["input_tokens"] == item["input_tokens"]
        assert trace.info.token_usage["output_tokens"] == item["output_tokens"]
        root = _root(trace)
        assert root.inputs
        assert root.outputs


def test_traces_are_linked_to_the_run(run: Any, traces: list[Any]) -> None:
    assert all(trace.info.trace_metadata.get("mlflow.sourceRun") == run.info.run_id for trace in traces)


def _root(trace: Any) -> Any:
    return next(span for span in trace.data.spans if span.parent_id is None)
