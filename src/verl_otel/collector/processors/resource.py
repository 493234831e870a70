"""``resource``: changes resource attributes, with the official processor's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from verl_otel.collector.records import Batch, EventRecord, MetricPoint, Resource, SpanRecord
from verl_otel.collector.sinks.base import ConfigError

_ACTIONS = ("insert", "update", "upsert", "delete")
R = TypeVar("R", SpanRecord, EventRecord, MetricPoint)


def resource(config: Mapping[str, Any], path: str) -> Callable[[Batch], Batch]:
    """``attributes: [{key, value, action: insert|update|upsert|delete}]``."""
    actions: Any = config.get("attributes")
    if set(config) - {"attributes"} or not isinstance(actions, list):
        raise ConfigError(path, "give `attributes: [{key: …, value: …, action: upsert}]`")
    for index, action in enumerate(actions):
        where = f"{path}.attributes[{index}]"
        if not isinstance(action, Mapping) or "key" not in action or action.get("action") not in _ACTIONS:
            raise ConfigError(where, f"needs key and action, one of {', '.join(_ACTIONS)}")
        if action["action"] != "delete" and "value" not in action:
            raise ConfigError(where, f"action {action['action']} needs a value")

    def process(batch: Batch) -> Batch:
        changed: dict[int, Resource] = {}

        def of(records: Sequence[R]) -> list[R]:
            result = []
            for record in records:
                known = id(record.resource)
                if known not in changed:
                    changed[known] = _apply(record.resource, actions)
                result.append(replace(record, resource=changed[known]))
            return result

        return replace(batch, spans=of(batch.spans), events=of(batch.events), metrics=of(batch.metrics))

    return process


def _apply(old: Resource, actions: Sequence[Mapping[str, Any]]) -> Resource:
    attributes = dict(old.attributes)
    for action in actions:
        key, what = action["key"], action["action"]
        if what == "delete":
            attributes.pop(key, None)
        elif what == "upsert" or (what == "insert") == (key not in attributes):
            attributes[key] = action["value"]
    return Resource(attributes)
