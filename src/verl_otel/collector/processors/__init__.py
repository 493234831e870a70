"""Processors: plain callables from batch to batch, made from a piece of YAML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verl_otel.collector.processors.resource import resource
from verl_otel.collector.records import Batch

Processor = Callable[[Batch], Batch]

# name in YAML -> (config, path) -> processor; raises sinks.base.ConfigError
FACTORIES: dict[str, Callable[[Any, str], Processor]] = {"resource": resource}
