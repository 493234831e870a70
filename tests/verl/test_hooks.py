"""Every dotted path of the hook table is there in the installed verl."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from tests.verl.rig import EXAMPLE
from verl_otel.cli.doctor import _look
from verl_otel.instrumentation.table import HOOKS, Hook

# As train.sh sets it: without the platform plugin verl does not find vLLM's build for the CPU.
PLUGIN = {
    "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_ENGINE_VENDOR": "nvidia",
}


@pytest.fixture(scope="module", autouse=True)
def cpu_platform() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        for name, value in PLUGIN.items():
            patch.setenv(name, value)
        importlib.import_module("cpu_platform")
        yield


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.path)
def test_the_hooked_place_exists_and_doctor_says_so(hook: Hook) -> None:
    assert _look(hook) == ("on", "")
    target = importlib.import_module(hook.module)
    for name in filter(None, hook.attribute.split(".")):
        target = getattr(target, name)
    assert callable(target) or not hook.attribute
