"""Every request, as it came, to another OTLP endpoint (Tempo, Jaeger, the official Collector, Phoenix…).

``otlp_http`` and ``otlp_grpc`` are the official Collector's names and mean what they mean there. ``otlp`` speaks HTTP
to a URL and gRPC to a ``host:port``.
"""

from verl_otel.collector.sinks.otlp.sink import OtlpGrpcSink, OtlpHttpSink, OtlpSink

__all__ = ["OtlpGrpcSink", "OtlpHttpSink", "OtlpSink"]
