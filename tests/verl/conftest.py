from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.verl.rig import EXAMPLE, Training, train

STEPS = 3
# What a fresh `make demo` left, if it is to be judged instead of a run of the tests' own.
DEMO_DATA = os.environ.get("DEMO_DATA")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.verl)


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("verl") is None:
        pytest.fail("verl is not installed here; run `make test-verl`")
    if DEMO_DATA:
        return Path(DEMO_DATA).absolute() / "assets"
    folder = tmp_path_factory.mktemp("assets")
    subprocess.run([sys.executable, str(EXAMPLE / "assets.py"), str(folder)], check=True, timeout=800)
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, assets: Path) -> Training:
    """The one run that most tests look at: real GRPO, sampled, under ``verl-otel run`` with its default configuration."""
    if DEMO_DATA:
        work = Path(DEMO_DATA).absolute()
        return Training(work, work / "verl-otel-data", 0, (work / "train.log").read_text(errors="replace"))
    done = train(tmp_path_factory.mktemp("trained"), assets, f"trainer.total_training_steps={STEPS}")
    assert done.code == 0, done.log[-5_000:]
    return done
