"""A real training under ``verl-otel run``: what the archive and MLflow hold is what verl did."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.verl.conftest import STEPS
from tests.verl.rig import Training
from verl_otel import semconv

BATCH, SIBLINGS, VALIDATION = 4, 4, 8
# Validation before training, after step 2, and after the last step
VALIDATIONS = 3


@pytest.fixture(scope="module")
def trajectories(trained: Training) -> list[dict[str, Any]]:
    return trained.ask("trajectories", "--limit", "0")


@pytest.fixture(scope="module")
def spans(trained: Training) -> list[dict[str, Any]]:
    """Every span row of the archive, as the files have it: nothing is merged or dropped on the way."""
    import duckdb

    files = str(trained.home / "archive/signal=spans/*/*.parquet")
    rows = duckdb.sql(f"SELECT * FROM read_parquet('{files}', union_by_name=true)").to_arrow_table()
    return rows.to_pylist()


@pytest.fixture(scope="module")
def shown(trained: Training, trajectories: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [trained.ask("show", item["trace_id"]) for item in trajectories]


def test_the_run_is_there_and_finished(trained: Training) -> None:
    (run,) = trained.ask("runs")
    assert run["status"] == "finished"
    assert (run["project"], run["experiment"], run["attempt"]) == ("tool-agent", "grpo-cpu", 1)
    assert run["steps"] == STEPS
    assert run["trajectories"] == STEPS * BATCH * SIBLINGS + VALIDATIONS * VALIDATION


def test_there_are_exactly_as_many_trajectories_as_verl_rolled_out(trajectories: list[dict[str, Any]]) -> None:
    counts = Counter((item["partition"], item["step"]) for item in trajectories)
    wanted = {("train", step): BATCH * SIBLINGS for step in range(1, STEPS + 1)}
    wanted |= {("val", step): VALIDATION for step in (0, 2, STEPS)}
    assert counts == wanted
    groups = Counter(item["group_id"] for item in trajectories if item["partition"] == "train")
    assert set(groups.values()) == {SIBLINGS}
    keys = {(item["group_id"], item["group_index"]) for item in trajectories}
    assert len(keys) == len(trajectories)


def test_no_span_is_an_orphan_or_a_duplicate(spans: list[dict[str, Any]]) -> None:
    keys = [(span["trace_id"], span["span_id"]) for span in spans]
    assert len(set(keys)) == len(keys)
    known = set(keys)
    orphans = [
        span["name"]
        for span in spans
        if span["parent_span_id"] and (span["trace_id"], span["parent_span_id"]) not in known
    ]
    assert orphans == []


def test_step_traces_cover_the_steps_time(trained: Training, spans: list[dict[str, Any]]) -> None:
    scalars = trained.scalars()
    steps = {span["step"]: span for span in spans if span["type"] == semconv.SpanType.STEP}
    assert sorted(steps) == list(range(1, STEPS + 1))
    beyond = {"testing", "metrics", "dump_rollout_generations"}
    for number, step in steps.items():
        phases = [
            span
            for span in spans
            if span["type"] == semconv.SpanType.PHASE and span["parent_span_id"] == step["span_id"]
        ]
        inside = sum(span["end_ns"] - span["start_ns"] for span in phases if span["name"] not in beyond) / 1e9
        total = scalars[number]["timing_s/step"]
        assert 0.95 * total <= inside <= 1.01 * total
        names = {span["name"] for span in phases}
        assert names >= {"gen", "old_log_prob", "adv", "update_actor", "update_weights"}


def test_ranks_are_seen_below_their_phases(spans: list[dict[str, Any]]) -> None:
    phases = {span["span_id"]: span for span in spans if span["type"] == semconv.SpanType.PHASE}
    workers = [span for span in spans if span["type"] == semconv.SpanType.WORKER]
    seen = Counter((phases[span["parent_span_id"]]["name"], span["name"]) for span in workers)
    assert seen == {
        ("old_log_prob", "compute_log_prob"): STEPS,
        ("update_actor", "update_actor"): STEPS,
        ("update_weights", "update_weights"): STEPS,
    }


def test_every_scalar_of_verls_own_file_logger_is_there(trained: Training) -> None:
    ours: dict[int, dict[str, float]] = {}
    for row in trained.ask("metrics", "latest"):
        ours.setdefault(row["step"], {})[row["key"]] = row["value"]
    theirs = trained.scalars()
    assert set(ours) == set(theirs)
    for step, data in theirs.items():
        assert set(ours[step]) == set(data)
        for key, value in data.items():
            assert float(ours[step][key]) == pytest.approx(float(value), rel=1e-12), (step, key)


def test_rewards_and_advantages_are_verls_own(trained: Training, trajectories: list[dict[str, Any]]) -> None:
    by_key = {f"{item['group_id']}_{item['group_index']}_0": item for item in trajectories}
    for step in range(1, STEPS + 1):
        rows = [json.loads(line) for line in (trained.work / f"rollouts/{step}.jsonl").read_text().splitlines()]
        assert len(rows) == BATCH * SIBLINGS
        groups: dict[str, list[float]] = {}
        for row in rows:
            item = by_key[row["uid"]]
            assert (item["step"], item["outcome"]) == (step, "trained")
            assert item["reward"] == pytest.approx(row["score"], rel=1e-6)
            groups.setdefault(item["group_id"], []).append(row["score"])
        for row in rows:
            # GRPO's advantage: the score in its group's standard deviations
            item = by_key[row["uid"]]
            scores = groups[item["group_id"]]
            mean = sum(scores) / len(scores)
            deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / (len(scores) - 1))
            assert item["advantage"] == pytest.approx((row["score"] - mean) / (deviation + 1e-6), abs=2e-3)


def test_turns_put_together_are_the_tokenizers_text_of_the_whole(assets: Path, shown: list[dict[str, Any]]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(assets / "model"))
    for item in shown:
        assert item["token_ids"]
        assert item["text"] == tokenizer.decode(item["token_ids"])
        assert len(item["token_ids"]) >= item["input_tokens"] / max(1, item["turns"])


def test_the_sequence_is_the_one_that_verl_trained_on(
    trained: Training, assets: Path, shown: list[dict[str, Any]]
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(assets / "model"))
    texts = {f"{item['group_id']}_{item['group_index']}_0": item for item in shown}
    for step in range(1, STEPS + 1):
        for row in map(json.loads, (trained.work / f"rollouts/{step}.jsonl").read_text().splitlines()):
            whole = tokenizer.decode(texts[row["uid"]]["token_ids"], skip_special_tokens=True)
            # verl cuts the response at its limit, so ours may go on.
            assert whole.startswith(row["input"] + row["output"])


def test_tool_calls_are_the_real_ones(shown: list[dict[str, Any]]) -> None:
    def tools(node: dict[str, Any]) -> list[dict[str, Any]]:
        own = [node] if node["name"].startswith("execute_tool") else []
        return own + [tool for child in node["children"] for tool in tools(child)]

    calls = [tool for item in shown for root in item["spans"] for tool in tools(root)]
    assert sum(item["tool_calls"] for item in shown) == len(calls)
    assert sum(item["tool_errors"] for item in shown) == sum(call["status"] == "error" for call in calls)
    checked = 0
    for call in calls:
        attributes = call["attributes"]
        if call["name"] != "execute_tool calc" or attributes.get("error.type") in ("invalid_arguments", "TypeError"):
            continue
        expression = str(json.loads(attributes["gen_ai.tool.call.arguments"])["expression"])
        if attributes.get("error.type") is None:
            assert attributes["gen_ai.tool.call.result"] == str(sum(int(x) for x in expression.split("+")))
            checked += 1
        elif expression.endswith("7"):
            assert attributes["error.type"] == "ValueError"
            assert f"cannot add {expression}" in str(call)
    assert checked > BATCH


def test_the_conversation_reads_as_it_was(shown: list[dict[str, Any]]) -> None:
    for item in shown:
        roles = [message["role"] for message in item["messages"]]
        assert roles[0] == "user"
        assert item["messages"][0]["content"].startswith("What is ")
        assert roles.count("tool") == item["tool_calls"]
        assert roles.count("assistant") == item["turns"]


def test_validation_samples_are_there(trained: Training) -> None:
    import duckdb

    files = str(trained.home / "archive/signal=events/*/*.parquet")
    query = f"SELECT step, count(*) FROM read_parquet('{files}', union_by_name=true) WHERE name = 'verl.generation' GROUP BY 1"
    assert dict(duckdb.sql(query).fetchall()) == {0: 4, 2: 4, STEPS: 4}


def test_every_name_on_the_wire_is_in_the_semantic_conventions(spans: list[dict[str, Any]]) -> None:
    page = (Path(__file__).parents[2] / "docs/semconv.md").read_text()
    prefixes = (semconv.STEP_METRIC_PREFIX, semconv.REWARD_PART_PREFIX)
    for span in spans:
        for name in json.loads(span["attributes"]):
            assert name.startswith(prefixes) or f"`{name}`" in page, name
