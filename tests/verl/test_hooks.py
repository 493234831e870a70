"""Every dotted path of the hook table is there in the installed verl, and ``doctor`` says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.verl.rig import EXAMPLE
from verl_otel.cli.doctor import _look
from verl_otel.instrumentation.table import HOOKS, Hook

# verl's own modules, imported as a training imports them: on the example's platform
IMPORT_ALL = """
import importlib
from verl_otel.instrumentation.table import HOOKS
import verl_otel.instrumentation as instrumentation
instrumentation.install()
for hook in HOOKS:
    importlib.import_module(hook.module)
from verl.utils.tracking import Tracking, track_metric
assert "otel" in Tracking.supported_backend
track_metric("of/no/run", 1.0)
state = instrumentation.status()
print([(hook.path, state.get(hook.path)) for hook in HOOKS if state.get(hook.path) != "on"])
"""


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.path)
def test_doctor_finds_the_place_in_verls_source(hook: Hook) -> None:
    assert _look(hook) == ("on", "")


def test_every_hook_is_put_in_place_and_tracking_knows_us_when_verls_modules_are_imported() -> None:
    platform = {
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_ENGINE_VENDOR": "nvidia",
        "PYTHONPATH": str(EXAMPLE),
    }
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], env={**os.environ, **platform}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.strip().splitlines()[-1] == "[]"
