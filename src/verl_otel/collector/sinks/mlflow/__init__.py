"""``mlflow``: a run per run with params, metrics and status; a trace per selected trajectory and per step.

Nothing here imports mlflow before the sink starts: it costs a second and 200 MB, which only its own process pays.
"""

from verl_otel.collector.sinks.mlflow.sink import MlflowSink

__all__ = ["MlflowSink"]
