"""What a sink will never take, set aside so that the rest can go on: the requests as they came, with the reason."""

from __future__ import annotations

import json
import time
from pathlib import Path

from verl_otel.collector.records import Batch


class DeadLetters:
    """Appends to ``<folder>/<sink>.jsonl``: where in the spool a refused batch lay, and why it was refused."""

    def __init__(self, folder: Path, sink: str) -> None:
        self._file = folder / f"{sink.replace('/', '%2F')}.jsonl"

    def add(self, batch: Batch, reason: str) -> None:
        """Note ``batch`` and ``reason``."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = {
            "time": time.time(),
            "reason": reason,
            "start": list(batch.start),
            "end": list(batch.end),
            "spans": len(batch.spans),
            "events": len(batch.events),
            "metrics": len(batch.metrics),
            "requests": len(batch.raw),
        }
        with self._file.open("a") as handle:
            handle.write(json.dumps(line) + "\n")
