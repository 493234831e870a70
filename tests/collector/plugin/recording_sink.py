"""A sink of another package, found by its entry point: writes what it gets to a file, and misbehaves as files say."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_otel.collector.records import Batch, Position
from verl_otel.collector.sinks.base import Reject, Retry, SinkContext


class RecordingSink:
    """A file named ``retry``, ``reject``, ``bug`` or ``hang`` in the folder of ``config`` makes it do so."""

    wants = frozenset({"spans", "events", "metrics"})

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        return dict(config)

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self.folder = Path(config["folder"])
        self.say("made")

    def start(self) -> Position | None:
        self.misbehave()
        self.say("started")
        return None

    def deliver(self, batch: Batch) -> None:
        if not batch.items:
            return
        self.misbehave()
        self.say("items", *(span.name for span in batch.spans), *(event.name for event in batch.events))
        self.say("resources", *(str(dict(span.resource.attributes)) for span in batch.spans))

    def tick(self) -> None:
        pass

    def committed(self) -> Position | None:
        return None

    def close(self, drain: bool) -> None:
        self.say("closed", str(drain))

    def misbehave(self) -> None:
        if (self.folder / "retry").exists():
            raise Retry("not now")
        if (self.folder / "reject").exists():
            raise Reject("never", 2)
        if (self.folder / "bug").exists():
            raise ZeroDivisionError("a bug")
        if (self.folder / "hang").exists():
            self.say("hangs")
            time.sleep(3600)

    def say(self, *words: str) -> None:
        with (self.folder / "said").open("a") as file:
            file.write(json.dumps(words) + "\n")
