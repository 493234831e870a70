"""The settings that are documented, in the example run configuration, and in the code are the same."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import yaml

from verl_otel.telemetry.settings import Settings

ROOT = Path(__file__).parent.parent


def test_every_variable_of_ours_in_the_source_is_on_the_settings_page() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    used = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.yaml")):
        used |= set(re.findall(r"VERL_OTEL_[A-Z_]+[A-Z]{2,}", path.read_text()))
    assert {name for name in used if f"`{name}`" not in page} == set()


def test_the_run_configuration_names_settings_that_exist() -> None:
    config = yaml.safe_load((ROOT / "configs/grpo_otel.yaml").read_text())
    assert set(config["verl_otel"]) <= {item.name for item in fields(Settings)}
