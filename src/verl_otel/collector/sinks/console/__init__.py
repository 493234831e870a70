"""``console``: one line for what a person wants to see go by."""

from verl_otel.collector.sinks.console.sink import ConsoleSink

__all__ = ["ConsoleSink"]
