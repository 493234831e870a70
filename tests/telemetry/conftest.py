from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.telemetry.receiver import Receiver
from verl_otel.telemetry import state


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts and ends with telemetry unmade and no variables of ours or OpenTelemetry's."""
    for name in list(os.environ):
        if name.startswith(("VERL_OTEL_", "OTEL_")):
            monkeypatch.delenv(name)
    before = set(os.environ)
    state.shutdown(0.5)
    state._role.clear()
    yield
    state.shutdown(0.5)
    state._role.clear()
    # ``init`` writes the identity into the environment, for child processes.
    for name in set(os.environ) - before:
        if name.startswith("VERL_OTEL_"):
            del os.environ[name]


@pytest.fixture
def endpoint(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    return receiver
