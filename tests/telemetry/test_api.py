from __future__ import annotations

import asyncio
import math

import pytest

import verl_otel
from tests.telemetry.receiver import Receiver
from verl_otel import identity
from verl_otel.telemetry import guard


def trained(step: int) -> str:
    """A whole little step: two siblings, one of them with a tool that fails."""
    with verl_otel.training_step(step, epoch=0), verl_otel.phase("gen"):
        for index in range(2):
            with verl_otel.trajectory("solver", group="g", index=index, inputs="2+2?", group_size=2) as trajectory:
                with verl_otel.turn() as turn:
                    turn.set_output("let me see", input_tokens=3, output_tokens=4, finish_reason="stop")
                if index:
                    with pytest.raises(ZeroDivisionError), verl_otel.tool_call("calc", {"x": 1}, "c1"):
                        raise ZeroDivisionError("no")
                else:
                    with verl_otel.tool_call("calc", {"x": 1}) as call:
                        call.result = "4"
                with verl_otel.turn() as turn:
                    turn.set_output("4", input_tokens=9, output_tokens=1, finish_reason="stop")
                trajectory.set_output("4")
                verl_otel.reward(1.0 - index, acc=1 - index)
            trajectory.trained(step, advantage=0.5)
        verl_otel.track_metric({"loss": 0.25, "odd": math.nan}, step=step)
    return trajectory.trace_id or ""


def test_a_step_and_its_trajectories_make_whole_trees(endpoint: Receiver) -> None:
    run_id = verl_otel.init(project="p", experiment="e", algorithm="grpo", model="tiny", config={"lr": 1e-3})
    trace_id = trained(1)
    verl_otel.shutdown()

    keys = [span.key for span in endpoint.spans]
    assert len(set(keys)) == len(keys)
    assert all(
        not span.proto.parent_span_id or (span.proto.trace_id, span.proto.parent_span_id) in keys
        for span in endpoint.spans
    )
    (step,) = endpoint.of_type("step")
    assert run_id is not None
    assert step.proto.trace_id.hex() == f"{identity.step_context(run_id, 1, 1).trace_id:032x}"
    assert [span.name for span in endpoint.of_type("phase")] == ["gen"]

    first, second = sorted(endpoint.of_type("trajectory"), key=lambda span: span.attributes["verl.group.index"])
    assert second.proto.trace_id.hex() == trace_id
    assert first.proto.links[0].trace_id == step.proto.trace_id
    assert first.attributes["rl.reward"] == 1.0
    assert first.attributes["gen_ai.usage.input_tokens"] == 12
    assert first.attributes["verl.trajectory.turns"] == 2
    assert first.attributes["verl.trajectory.tool_errors"] == 0
    assert second.attributes["verl.trajectory.tool_errors"] == 1
    assert "2+2?" in first.attributes["gen_ai.input.messages"]

    works, fails = sorted(endpoint.of_type("tool"), key=lambda span: span.failed)
    assert works.attributes["gen_ai.tool.call.result"] == "4"
    assert fails.attributes["error.type"] == "ZeroDivisionError"
    assert fails.proto.events[0].name == "exception"
    answers = [span for span in endpoint.of_type("turn") if span.attributes["verl.turn.index"] == 1]
    assert any('"tool_call_response"' in span.attributes["gen_ai.input.messages"] for span in answers)

    resource = step.resource
    assert resource["rl.run.id"] == run_id
    assert resource["verl.project.name"] == "p"
    assert resource["verl.run.attempt"] == 1


def test_events_carry_exact_keys_and_values(endpoint: Receiver) -> None:
    verl_otel.init(project="p", config={"lr": 1e-3, "api_key": "s3cret", "url": "http://me:pw@host/x", "none": None})
    trained(3)
    verl_otel.shutdown()

    (started,) = endpoint.named("verl.run.started")
    config = started.body["config"]
    assert config.pop("none") in (None, "None")
    assert config == {"lr": 1e-3, "api_key": "[removed]", "url": "[removed]"}
    (metrics,) = endpoint.named("verl.metrics")
    assert metrics.attributes["rl.loop.iteration"] == 3
    assert metrics.body["loss"] == 0.25
    assert math.isnan(metrics.body["odd"])
    rewards = {event.attributes["gen_ai.evaluation.name"] for event in endpoint.named("gen_ai.evaluation.result")}
    assert rewards == {"reward", "acc"}
    outcomes = endpoint.named("verl.trajectory.outcome")
    roots = {span.proto.trace_id for span in endpoint.of_type("trajectory")}
    assert {event.proto.trace_id for event in outcomes} == roots
    assert all(event.attributes["rl.advantage"] == 0.5 for event in outcomes)
    (finished,) = endpoint.named("verl.run.finished")
    assert finished.attributes["verl.run.status"] == "finished"
    assert {metric.name for metric in endpoint.metrics} >= {"verl.loss", "verl.step.duration", "verl.trajectory.reward"}


def test_a_prompt_used_again_at_another_step_or_twice_makes_other_trajectories(endpoint: Receiver) -> None:
    verl_otel.init(project="p")
    for step in (1, 2, 2):
        with verl_otel.trajectory("a", group="same", index=0, step=step):
            pass
    verl_otel.shutdown()
    assert len({root.proto.trace_id for root in endpoint.of_type("trajectory")}) == 3


def test_decorators_work_on_sync_and_async_functions(endpoint: Receiver) -> None:
    @verl_otel.tool_call("calc")
    def calc(x: int) -> str:
        return str(x)

    @verl_otel.turn()
    async def think() -> str:
        await asyncio.sleep(0)
        return "thought"

    @verl_otel.trajectory("decorated")
    async def run(x: int) -> str:
        await think()
        return calc(x)

    async def main() -> list[str]:
        return await asyncio.gather(*(run(x) for x in range(20)))

    verl_otel.init(project="p")
    assert asyncio.run(main()) == [str(x) for x in range(20)]
    verl_otel.shutdown()
    roots = {span.proto.trace_id: span for span in endpoint.of_type("trajectory")}
    assert len(roots) == 20
    for tool in endpoint.of_type("tool"):
        assert (
            tool.attributes["gen_ai.tool.call.result"]
            in roots[tool.proto.trace_id].attributes["gen_ai.output.messages"]
        )


def test_everything_is_a_no_op_without_init_and_when_disabled(endpoint: Receiver, monkeypatch) -> None:
    trained(1)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert verl_otel.init(project="p") is None
    assert trained(1) == ""
    verl_otel.shutdown()
    assert endpoint.requests == 0


def test_exceptions_of_the_user_pass_through_unchanged(endpoint: Receiver) -> None:
    verl_otel.init(project="p")
    error = KeyError("mine")
    step, phase = verl_otel.training_step(1), verl_otel.phase("gen")
    with pytest.raises(KeyError) as caught, step, phase, verl_otel.trajectory("a"), verl_otel.turn():
        raise error
    assert caught.value is error
    verl_otel.shutdown("failed")
    assert all(span.failed for span in endpoint.spans)
    assert len(endpoint.spans) == 4


def test_an_error_of_ours_is_counted_and_does_not_reach_the_user(endpoint: Receiver, monkeypatch) -> None:
    from verl_otel.telemetry import trajectories

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("ours")

    verl_otel.init(project="p")
    monkeypatch.setattr(trajectories, "start", broken)
    before = guard.counts().get("error.api", 0)
    with verl_otel.trajectory("a") as trajectory:
        trajectory.set_output("fine")
    assert guard.counts()["error.api"] == before + 1


def test_content_stays_in_the_process_when_capture_is_off(endpoint: Receiver, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "false")
    verl_otel.init(project="p")
    trained(1)
    verl_otel.shutdown()
    sent = " ".join(str(span.proto) for span in endpoint.spans)
    assert len(endpoint.of_type("trajectory")) == 2
    assert "2+2?" not in sent
    assert "let me see" not in sent


def test_long_texts_are_cut_and_marked(endpoint: Receiver, monkeypatch) -> None:
    monkeypatch.setenv("VERL_OTEL_MAX_LENGTH", "50")
    verl_otel.init(project="p")
    with verl_otel.trajectory("a", inputs="x" * 1000):
        pass
    verl_otel.shutdown()
    (root,) = endpoint.of_type("trajectory")
    assert len(root.attributes["gen_ai.input.messages"]) == 50
    assert root.attributes["verl.content.truncated"] is True


def test_whole_groups_are_selected_together(endpoint: Receiver, monkeypatch) -> None:
    monkeypatch.setenv("VERL_OTEL_LOG_ROLLOUT_TRACES", "40")
    monkeypatch.setenv("VERL_OTEL_GROUP_SIZE_HINT", "160")
    verl_otel.init(project="p", run_id="fixed")
    for group in range(40):
        for index in range(4):
            with verl_otel.trajectory("a", group=f"g{group}", index=index, step=1):
                pass
    verl_otel.shutdown()
    kept: dict[str, int] = {}
    for root in endpoint.of_type("trajectory"):
        kept[root.attributes["verl.group.id"]] = kept.get(root.attributes["verl.group.id"], 0) + 1
    assert set(kept.values()) == {4}
    assert 2 <= len(kept) <= 20
