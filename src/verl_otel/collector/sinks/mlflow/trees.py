"""Puts spans together to whole traces before they are written: a trace is ready when its root came and a moment passed."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from verl_otel.collector.records import Position, SpanRecord

GRACE_S = 2.0
GIVE_UP_S = 600.0
MAX_HELD_SPANS = 50_000
_REMEMBERED = 100_000


@dataclass(slots=True)
class Tree:
    """The spans of one trace that are there; ``since`` is where the first of them lies in the spool."""

    since: Position
    seen_at: float
    spans: dict[str, SpanRecord] = field(default_factory=dict)
    root: SpanRecord | None = None
    late: bool = False


class Trees:
    """Traces that are not written yet."""

    def __init__(self) -> None:
        self._held: dict[str, Tree] = {}
        self._written: OrderedDict[str, None] = OrderedDict()
        self._spans = 0

    def add(self, span: SpanRecord, since: Position) -> None:
        """Take a span that lies behind ``since`` in the spool."""
        now = time.monotonic()
        tree = self._held.get(span.trace_id)
        if tree is None:
            tree = self._held[span.trace_id] = Tree(since, now, late=span.trace_id in self._written)
        self._spans += span.span_id not in tree.spans
        tree.spans[span.span_id] = span
        tree.seen_at = now
        if not span.parent_span_id:
            tree.root = span

    def ready(self, everything: bool = False) -> list[Tree]:
        """Traces to write now: whole ones, late parts of written ones, and those whose root never came."""
        now = time.monotonic()
        crowded = self._spans > MAX_HELD_SPANS
        found = []
        for tree in self._held.values():
            age = now - tree.seen_at
            if everything or crowded or age > (GRACE_S if tree.root or tree.late else GIVE_UP_S):
                found.append(tree)
        return found

    def holds(self, trace_id: str) -> bool:
        """Whether spans of this trace are still to be written."""
        return trace_id in self._held

    def done(self, trees: list[Tree]) -> None:
        """These are written."""
        for tree in trees:
            trace_id = next(iter(tree.spans.values())).trace_id
            del self._held[trace_id]
            self._spans -= len(tree.spans)
            self._written[trace_id] = None
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def oldest(self) -> Position | None:
        """Where a restart must read again from: the first place that still has an unwritten span behind it."""
        return min((tree.since for tree in self._held.values()), default=None)
