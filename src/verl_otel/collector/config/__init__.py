"""The collector's YAML, in the OpenTelemetry Collector's shape; strict."""

from verl_otel.collector.config.load import ConfigErrors, check, default_text, load, load_default, only
from verl_otel.collector.config.model import Config, Exporter, Pipeline

__all__ = ["Config", "ConfigErrors", "Exporter", "Pipeline", "check", "default_text", "load", "load_default", "only"]
