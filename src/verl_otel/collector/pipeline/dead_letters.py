"""What a sink will never take, set aside so that the rest can go on: the requests as they came, and why."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from verl_otel.collector.spool import segments

# A destination that refuses everything must not fill the disk with a second spool.
_MAX_BYTES = 1 << 30


class DeadLetters:
    """Keeps requests in ``<folder>/<sink>.otlp``, framed as in the spool, and reasons in ``<folder>/<sink>.jsonl``."""

    def __init__(self, folder: Path, sink: str) -> None:
        name = sink.replace("/", "%2F")
        self._requests = folder / f"{name}{segments.SUFFIX}"
        self._reasons = folder / f"{name}.jsonl"

    def add(self, requests: Sequence[tuple[str, bytes]], reason: str, records: int) -> None:
        """Keep ``requests``, of whose records ``records`` were refused; past 1 GiB only the reason is kept.

        Raises:
            OSError: the disk does not take them.
        """
        self._requests.parent.mkdir(parents=True, exist_ok=True)
        now = time.time_ns()
        frames = b"".join(segments.encode(signal, data, 0, now) for signal, data in requests)
        with _appending(self._requests) as handle:
            offset = handle.tell()
            kept = offset + len(frames) <= _MAX_BYTES
            if kept:
                handle.write(frames)
                handle.flush()
                os.fsync(handle.fileno())
        line = {
            "time": now / 1e9,
            "reason": reason,
            "records": records,
            "requests": len(requests),
            "offset": offset if kept else None,
            "bytes": len(frames),
        }
        with _appending(self._reasons) as handle:
            handle.write(json.dumps(line).encode() + b"\n")


def _appending(file: Path):  # type: ignore[no-untyped-def]
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
