"""How far a sink is, and what it counted: one small JSON file per sink, replaced as a whole."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from verl_otel.collector.records import Position

logger = logging.getLogger(__name__)

_SUFFIX = ".cursor.json"
_START = Position(0, 0)


@dataclass(slots=True)
class Cursor:
    """``position`` is safe at the destination; the counts are totals since the sink was first configured."""

    sink: str
    position: Position = _START
    delivered: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    rejected: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    pending_bytes: int = 0
    last_error: str = ""
    last_error_at: float = 0.0
    failing: bool = False
    failing_since: float = 0.0
    updated_at: float = 0.0

    @classmethod
    def load(cls, folder: Path, sink: str) -> Cursor:
        """The cursor of ``sink``, or a new one at the spool's beginning."""
        file = _file(folder, sink)
        try:
            loaded = json.loads(file.read_text())
            # Files of older and newer versions may have other fields.
            known = {item.name: loaded[item.name] for item in fields(cls) if item.name in loaded}
            segment, offset = known["position"]
            cursor = cls(**{**known, "sink": sink, "position": Position(int(segment), int(offset))})
            cursor._check()
            return cursor
        except FileNotFoundError:
            return cls(sink)
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.error("%s: %s cannot be read (%s); begins at the oldest data", sink, file.name, error)
            return cls(sink)

    def _check(self) -> None:
        """Raises ``TypeError`` or ``ValueError`` for what would fail only where it is used."""
        new = Cursor(self.sink)
        for item in fields(self):
            found, wanted = getattr(self, item.name), getattr(new, item.name)
            if not isinstance(found, (int, float) if isinstance(wanted, float) else type(wanted)):
                raise TypeError(f"{item.name} is {found!r}")
        if min(self.position) < 0:
            raise ValueError(f"there is no place {tuple(self.position)}")
        for counts in (self.delivered, self.counters):
            if not all(isinstance(count, int) for count in counts.values()):
                raise TypeError(f"{counts!r} holds what is no count")

    def save(self, folder: Path) -> None:
        """Replace the file; a crash leaves the old one or the new one."""
        self.updated_at = time.time()
        file = _file(folder, self.sink)
        temporary = file.with_suffix(".new")
        with temporary.open("w") as handle:
            json.dump(asdict(self), handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(file)


def _file(folder: Path, sink: str) -> Path:
    return folder / (sink.replace("/", "%2F") + _SUFFIX)


def load_all(folder: Path) -> list[Cursor]:
    """The cursors of all sinks that ever ran on this spool."""
    names = [file.name.removesuffix(_SUFFIX).replace("%2F", "/") for file in sorted(folder.glob(f"*{_SUFFIX}"))]
    return [Cursor.load(folder, name) for name in names]
