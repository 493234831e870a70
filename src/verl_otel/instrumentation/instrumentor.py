"""The door for ``opentelemetry-instrument``: the same hooks, installed by OpenTelemetry's own loader."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from verl_otel.instrumentation import install


class VerlInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments verl. It stays in place once installed: a training process has no use for half of a trajectory."""

    def instrumentation_dependencies(self) -> Collection[str]:
        # verl may be a source checkout without a distribution; the hooks wait for its modules and need no more.
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        install()

    def _uninstrument(self, **kwargs: Any) -> None:
        pass
