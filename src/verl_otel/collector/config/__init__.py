"""The collector's YAML, in the OpenTelemetry Collector's shape; strict."""

from verl_otel.collector.config.load import ConfigErrors, load, load_default
from verl_otel.collector.config.model import Config, Exporter, Pipeline

__all__ = ["Config", "ConfigErrors", "Exporter", "Pipeline", "load", "load_default"]
