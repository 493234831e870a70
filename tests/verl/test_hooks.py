"""Every dotted path of the hook table is there in the installed verl."""

from __future__ import annotations

import importlib

import pytest

from verl_otel.cli.doctor import _look
from verl_otel.instrumentation.table import HOOKS, Hook


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.path)
def test_the_hooked_place_exists_and_doctor_says_so(hook: Hook) -> None:
    assert _look(hook) == ("on", "")
    target = importlib.import_module(hook.module)
    for name in filter(None, hook.attribute.split(".")):
        target = getattr(target, name)
    assert callable(target) or not hook.attribute
