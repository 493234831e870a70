"""The MLflow that the sink writes to: its client, and its errors as ``Retry`` and ``Reject``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl_otel.collector.sinks.base import Reject, Retry
from verl_otel.collector.sinks.mlflow.config import MlflowConfig

# MLflow's error codes for what no second try can mend
_FINAL = frozenset(
    {
        "INVALID_PARAMETER_VALUE",
        "BAD_REQUEST",
        "MALFORMED_REQUEST",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
    }
)


class Backend:
    """Clients of one tracking server or store. ``artifacts`` is where a local store keeps artifacts."""

    def __init__(self, config: MlflowConfig, home: Path) -> None:
        # The worker tries again by its own rule; MLflow's would block for minutes in one call.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(config.timeout)))
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.uri = config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}"
        self.artifacts = None if self.uri.startswith("http") else (home / "mlflow-artifacts").as_uri()
        with translated(self.uri):
            import mlflow
            from mlflow import MlflowClient
            from mlflow.tracing.client import TracingClient

            mlflow.set_tracking_uri(self.uri)
            self.client: Any = MlflowClient(self.uri)
            self.store: Any = TracingClient(self.uri).store
            # The first use of a store makes or migrates its tables, which takes seconds.
            self.client.search_experiments(max_results=1)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """MLflow's errors as ``Retry`` or ``Reject``."""
    try:
        yield
    except (Retry, Reject):
        raise
    except Exception as error:
        code = getattr(error, "error_code", "")
        text = f"MLflow at {where}: {_first_line(error)}"
        if code in _FINAL:
            raise Reject(text) from error
        raise Retry(text) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
