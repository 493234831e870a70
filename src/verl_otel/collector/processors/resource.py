"""``resource``: changes resource attributes, with the official processor's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from verl_otel.collector.config.keys import Problems
from verl_otel.collector.records import Batch, EventRecord, MetricPoint, Resource, SpanRecord

_ACTIONS = ("insert", "update", "upsert", "delete")
R = TypeVar("R", SpanRecord, EventRecord, MetricPoint)


def resource(config: Any, path: str) -> Callable[[Batch], Batch]:
    """``attributes: [{key, value, action: insert|update|upsert|delete}]``; raises ``ConfigError``."""
    actions = _checked(config, path)

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


def _checked(config: Any, path: str) -> list[Mapping[str, Any]]:
    problems = Problems()
    actions = problems.mapping(config, path, ("attributes",)).get("attributes")
    if not isinstance(actions, list) or not actions:
        problems.add(f"{path}.attributes", "must be a list of {key: …, value: …, action: upsert}")
        actions = []
    for index, action in enumerate(actions):
        where = f"{path}.attributes[{index}]"
        keys = problems.mapping(action, where, ("key", "value", "action"))
        if not isinstance(keys.get("key"), str):
            problems.add(f"{where}.key", "must be an attribute's name")
        what = problems.choice(keys.get("action"), f"{where}.action", _ACTIONS, "")
        if what != "delete" and keys.get("value") is None:
            problems.add(f"{where}.value", f"is missing; action {what} needs one")
    problems.raise_first()
    return actions


def _apply(old: Resource, actions: Sequence[Mapping[str, Any]]) -> Resource:
    attributes = dict(old.attributes)
    for action in actions:
        key, what = action["key"], action["action"]
        if what == "delete":
            attributes.pop(key, None)
        elif what == "upsert" or (what == "insert") == (key not in attributes):
            attributes[key] = action["value"]
    return Resource(attributes)
