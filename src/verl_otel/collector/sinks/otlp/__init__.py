"""``otlp``: every request, as it came, to another OTLP endpoint (Tempo, Jaeger, the official Collector, Phoenix…)."""

from verl_otel.collector.sinks.otlp.sink import OtlpSink

__all__ = ["OtlpSink"]
