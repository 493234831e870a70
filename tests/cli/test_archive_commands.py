"""``runs``, ``trajectories``, ``show`` and ``metrics`` as a user calls them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.archive.factory import EXACT, ODD_KEY, Run, archive, messages, resource, small_run
from verl_otel import semconv
from verl_otel.cli import metrics, render, runs, show, trajectories
from verl_otel.collector.records import SpanRecord

RUN = "20260101-000000-abc123"
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]no[/] :smile: \u202egnirts \x9b31m"


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def call(*argv: str) -> int:
    parser = argparse.ArgumentParser(prog="verl-otel")
    subparsers = parser.add_subparsers(required=True)
    for command in (runs, trajectories, show, metrics):
        command.add_parser(subparsers)
    args = parser.parse_args(argv)
    code = args.run(args)
    assert isinstance(code, int)
    return code


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("home")
    archive(made, small_run(RUN))
    return made


@pytest.fixture
def ask(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The JSON that a command prints."""
    monkeypatch.setenv("VERL_OTEL_HOME", str(home))

    def asked(*argv: str) -> Any:
        assert call(*argv, "--json") == 0
        return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return asked


@pytest.fixture
def see(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The text that a command prints."""
    monkeypatch.setenv("VERL_OTEL_HOME", str(home))

    def seen(*argv: str) -> str:
        assert call(*argv) == 0
        return capsys.readouterr().out

    return seen


def test_runs_as_json(ask: Callable[..., Any]) -> None:
    (run,) = ask("runs")
    expected = {
        "run_id": RUN,
        "project": "gsm8k",
        "experiment": "grpo",
        "attempt": 1,
        "status": "finished",
        "started_at": "2026-09-21T14:13:20.000000Z",
        "steps": 3,
        "trajectories": 13,
    }
    assert expected.items() <= run.items()
    assert ask("runs", "--project", "other") == []


def test_trajectories_as_json(ask: Callable[..., Any]) -> None:
    (found,) = ask("trajectories", RUN[:9], "--tool-error")
    expected = {
        "run_id": RUN,
        "step": 2,
        "partition": "train",
        "group_id": "b2",
        "group_index": 1,
        "agent": "tool_agent",
        "reward": 0.0,
        "advantage": -0.5,
        "outcome": "trained",
        "turns": 2,
        "tool_calls": 1,
        "tool_errors": 1,
        "input_tokens": 9,
        "output_tokens": 5,
        "duration_s": 0.5,
        "status": "ok",
    }
    assert expected.items() <= found.items()
    assert len(found["trace_id"]) == 32
    assert found["started_at"].endswith("Z")


def test_options_become_filters(ask: Callable[..., Any]) -> None:
    assert len(ask("trajectories")) == 13
    assert len(ask("trajectories", "--run", "latest", "--limit", "2")) == 2
    assert len(ask("trajectories", "--step", "2-3", "--reward", "<0.4", "--reward", ">0")) == 4
    assert len(ask("trajectories", "--min-reward", "0.3", "--max-reward", "0.6")) == 7
    assert len(ask("trajectories", "--partition", "val", "--agent", "tool_agent", "--no-failed")) == 1
    assert len(ask("trajectories", "--outcome", "trained", "--group", "a")) == 6
    assert ask("trajectories", "--outcome", "stale") == []
    rewards = [item["reward"] for item in ask("trajectories", "--sort", "reward", "--desc")]
    assert rewards == sorted(rewards, reverse=True)


def test_show_as_json(ask: Callable[..., Any]) -> None:
    (wanted,) = ask("trajectories", "--tool-error")
    found = ask("show", wanted["trace_id"][:8])
    assert wanted.items() <= found.items()
    assert found["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "2+2?"},
        {
            "role": "assistant",
            "content": "let me add",
            "tool_calls": [{"id": "c1", "name": "add", "arguments": '{"a": 2, "b": 2}'}],
        },
        {"role": "tool", "content": "Error: boom", "name": "add", "tool_call_id": "c1", "error": "ValueError"},
        {"role": "assistant", "content": "the answer is 4"},
    ]
    assert found["text"] == "<user>2+2?<call>add<tool>4the answer is 4"
    assert found["token_ids"] == list(range(1, 10))
    (root,) = found["spans"]
    assert set(root) >= {"span_id", "name", "start", "duration_s", "status", "attributes", "events", "children"}
    assert root["children"][1]["status"] == "error"


def test_a_step_as_json_has_the_same_keys(ask: Callable[..., Any]) -> None:
    step = ask("show", "--step", "2")
    trajectory = ask("show", ask("trajectories", "--limit", "1")[0]["trace_id"])
    assert set(step) == set(trajectory)
    assert (step["type"], step["step"], step["reward"], step["messages"]) == ("step", 2, None, [])
    assert step["spans"][0]["events"][0]["body"]["actor/loss"] == "NaN"


def test_metrics_as_json(ask: Callable[..., Any]) -> None:
    found = {(item["step"], item["key"]): item["value"] for item in ask("metrics", RUN)}
    assert found[1, "actor/loss"] == EXACT
    assert found[2, "actor/loss"] == "NaN"
    assert found[3, "actor/lr"] == "-Infinity"
    assert found[1, "ok"] is True
    some = ask("metrics", "--key", "val-core/*", "--step", "2-")
    assert some == [{"step": 2, "key": ODD_KEY, "value": 0.5}, {"step": 3, "key": ODD_KEY, "value": 0.5}]


def test_what_people_see(see: Callable[..., str]) -> None:
    assert "20260101-000000-abc123 gsm8k" in see("runs")
    listed = see("trajectories", "--tool-error")
    assert len(listed.splitlines()) == 2
    shown = see("show", listed.splitlines()[1].split()[0])
    assert "tool add  ✗ ValueError\n  Error: boom" in shown
    assert '→ add({"a": 2, "b": 2})' in shown
    assert "├── ✗ execute_tool add  100ms  ValueError boom" in shown
    assert "advantage       -0.5" in shown
    assert "training_step  5.0s" in see("show", "--step", "1")
    assert "nan" in see("metrics", "--key", "actor/loss")


def test_a_pipe_gets_no_color_and_whole_ids(see: Callable[..., str]) -> None:
    for command in ("runs", "trajectories", "metrics"):
        assert "\x1b" not in see(command)
        assert "…" not in see(command)


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_a_narrow_terminal_loses_columns_but_not_ids(
    see: Callable[..., str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = see("trajectories")
    assert "…" not in shown
    assert all(len(line) <= int(columns) for line in shown.splitlines())
    assert {"trace", "step", "reward", "errs"} <= set(shown.splitlines()[0].split())


def test_nothing_a_model_wrote_reaches_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_OTEL_HOME", str(tmp_path))
    run = Run(f"run{HOSTILE}")
    owner = resource(run.run_id)
    kind = semconv.SPAN_TYPE
    for number, attributes in enumerate(
        [
            {kind: "trajectory", semconv.INPUT_MESSAGES: messages(("user", HOSTILE)), semconv.AGENT_NAME: HOSTILE},
            {kind: "turn", semconv.TURN_INDEX: 0, semconv.TURN_OUTPUT_TEXT: HOSTILE},
            {kind: "tool", semconv.TURN_INDEX: 0, semconv.TOOL_ARGUMENTS: HOSTILE, semconv.ERROR_TYPE: HOSTILE},
        ]
    ):
        parent = f"{1:016x}" if number else ""
        run.spans.append(
            SpanRecord(owner, "a" * 32, f"{number + 1:016x}", parent, HOSTILE, 1, 2, attributes, "error", HOSTILE)
        )
    run.step(1, {HOSTILE: HOSTILE})
    archive(tmp_path, run)
    for argv in (["runs"], ["trajectories"], ["show", "aa", "--full"], ["show", "--step", "1"], ["metrics"]):
        for form in ([], ["--json"]):
            assert call(*argv, *form) == 0
            out = capsys.readouterr().out
            assert not set("\x1b\x07\x9b\u202e") & set(out), argv
            if not form:
                assert "[bold red]no[/] :smile:" in out, argv
    assert call("show", HOSTILE) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_long_text_is_folded_unless_all_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_OTEL_HOME", str(tmp_path))
    run = Run(RUN)
    turn = {semconv.SPAN_TYPE: "turn", semconv.TURN_INDEX: 0, semconv.TURN_OUTPUT_TEXT: "word " * 2000 + "END"}
    run.spans.append(SpanRecord(resource(RUN), "a" * 32, "b" * 16, "", "chat", 1, 2, turn))
    archive(tmp_path, run)
    assert call("show", "aa") == 0
    folded = capsys.readouterr().out
    assert "END" not in folded
    assert "(10003 characters; --full shows all)" in folded
    assert call("show", "aa", "--full") == 0
    assert "END" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["trajectories", "20260102"], "no run '20260102' in {home}; nearest: '20260101-000000-abc123'"),
        (["trajectories", "zzz"], "no run 'zzz' in {home}; known: '20260101-000000-abc123'"),
        (["trajectories", "--step", "x"], "step 'x' is neither a number nor a range"),
        (["trajectories", "--reward", "low"], "reward 'low' is not a comparison"),
        (["trajectories", "--sort", "x"], "cannot sort by 'x'; known: started"),
        (["trajectories", "--limit", "-1"], "--limit -1: must be 0"),
        (["trajectories", RUN, "--run", "x"], "two runs given"),
        (["metrics", "zzz"], "no run 'zzz'"),
        (["show"], "give either a TRACE_ID"),
        (["show", "--step", "99"], f"run '{RUN}' has no step 99"),
        (["show", "xyz"], "'xyz' is no trace id"),
        (["show", "0" * 32], "no trace"),
        (["runs", "--home", "/nowhere"], "/nowhere: no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], problem: str
) -> None:
    monkeypatch.setenv("VERL_OTEL_HOME", str(home))
    assert call(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"verl-otel {argv[0]}: {problem.format(home=home)}")
    assert err.count("\n") == 1


def test_an_empty_archive_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("runs", "--home", str(tmp_path)) == 0
    assert capsys.readouterr() == ("", f"no runs in {tmp_path} yet\n")
    assert call("runs", "--home", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_broken_file_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive(tmp_path, small_run(RUN))
    file = next(tmp_path.glob("archive/signal=events/*/*.parquet"))
    file.write_bytes(b"no Parquet")
    assert call("metrics", RUN, "--home", str(tmp_path)) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"verl-otel metrics: {tmp_path}/archive: cannot be read: ")
    assert file.name in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [runs, trajectories, show, metrics])
def test_help_has_examples(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = command.__name__.rpartition(".")[2]
    with pytest.raises(SystemExit):
        call(name, "--help")
    assert f"verl-otel {name}" in capsys.readouterr().out.partition("examples:")[2]


def test_a_reader_that_goes_away_is_no_error(home: Path) -> None:
    code = "import sys; from tests.cli.test_archive_commands import call; sys.exit(call('metrics'))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "VERL_OTEL_HOME": str(home)},
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0.5, "500ms"), (5.0, "5.0s"), (125.0, "2m05s"), (3600 * 3 + 61.0, "3h01m")],
)
def test_durations(value: float | None, expected: str) -> None:
    assert render.seconds(value) == expected
