from __future__ import annotations

import json
import subprocess
import sys

import pytest

import verl_otel
from verl_otel.telemetry import events
from verl_otel.telemetry.settings import SettingError, Settings, export_to_env


def test_the_environment_wins_over_the_file(tmp_path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"max_length": 10, "token_ids": False}))
    settings = Settings.from_env({"VERL_OTEL_CONFIG": str(file), "VERL_OTEL_MAX_LENGTH": "20"})
    assert (settings.max_length, settings.token_ids) == (20, False)


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("VERL_OTEL_MAX_LENGTH", "long", "a whole number"),
        ("VERL_OTEL_FLUSH_INTERVAL", "soon", "a number"),
        ("VERL_OTEL_TOKEN_IDS", "maybe", "true or false"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_may_be(variable: str, value: str, wanted: str) -> None:
    with pytest.raises(SettingError) as caught:
        Settings.from_env({variable: value})
    assert variable in str(caught.value)
    assert wanted in str(caught.value)


def test_a_file_that_is_no_object_is_said(tmp_path) -> None:
    file = tmp_path / "settings.json"
    file.write_text("[1]")
    with pytest.raises(SettingError, match="must be a JSON object"):
        Settings.from_env({"VERL_OTEL_CONFIG": str(file)})


def test_verls_config_fills_what_the_environment_leaves_open() -> None:
    env = {"VERL_OTEL_MAX_LENGTH": "5"}
    unknown = export_to_env({"max_length": 7, "log_rollout_traces": 8, "nonsense": 1}, env)
    assert unknown == ["nonsense"]
    assert env == {"VERL_OTEL_MAX_LENGTH": "5", "VERL_OTEL_LOG_ROLLOUT_TRACES": "8"}


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("api_key", "abc", False),
        ("hf_token", "abc", False),
        ("password", "abc", False),
        ("anything", "sk-abcdef", False),
        ("uri", "postgresql://u:p@host/db", False),
        ("max_token_len_per_gpu", "16384", True),
        ("token_level_rewards", "x", True),
        ("tokenizer_path", "/models/x", True),
        ("lr", "1e-6", True),
    ],
)
def test_secrets_are_removed_and_settings_about_tokens_are_not(name: str, value: str, kept: bool) -> None:
    assert (events.without_secrets({name: value})[name] == value) is kept


def test_a_secret_on_the_command_line_is_removed() -> None:
    assert events.without_secrets(["python", "trainer.api_key=abc", "lr=1"]) == [
        "python",
        "trainer.api_key=[removed]",
        "lr=1",
    ]


def test_importing_the_package_imports_no_sdk() -> None:
    code = (
        "import sys, verl_otel, verl_otel.instrumentation as i; i.install(); print('opentelemetry.sdk' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "False"
    assert set(verl_otel.__all__) >= {"init", "training_step", "trajectory", "shutdown"}
