"""The configurations that people copy are ones that the code takes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from verl_otel.telemetry.settings import Settings, export_to_env

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"


def sourced(file: Path) -> dict[str, str]:
    """What a shell that starts with an empty environment has after ``set -a; . file``."""
    done = subprocess.run(
        ["bash", "-c", 'set -aeu; . "$1"; env -0', "bash", str(file)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
        timeout=30,
    )
    return dict(item.split("=", 1) for item in done.stdout.decode().split("\0") if item)


def ours(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("VERL_OTEL_")}


def test_every_variable_of_the_run_environment_is_a_setting() -> None:
    env = sourced(CONFIGS / "run.env")
    known = {f"VERL_OTEL_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert set(ours(env)) <= known
    assert Settings.from_env(env) != Settings()


def test_the_three_doors_say_the_same() -> None:
    by_environment = Settings.from_env(sourced(CONFIGS / "run.env"))
    by_file = Settings.from_env({"VERL_OTEL_CONFIG": str(CONFIGS / "settings.json")})
    assert by_file == by_environment
    overrides = dict(re.findall(r"\+verl_otel\.(\w+)=(\S+)", (CONFIGS / "README.md").read_text()))
    env: dict[str, str] = {}
    assert export_to_env(overrides, env) == []
    said = Settings.from_env(env)
    for name in overrides:
        assert getattr(said, name) == getattr(by_environment, name)


def test_links_of_the_readmes_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *CONFIGS.glob("*.md"), *ROOT.glob("examples/*/*.md")):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
