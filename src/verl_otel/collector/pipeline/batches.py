"""Reads the spool in batches and decodes what a sink wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from verl_otel.collector import decode
from verl_otel.collector.processors import Processor
from verl_otel.collector.records import Batch, EventRecord, MetricPoint, SpanRecord
from verl_otel.collector.spool import SpoolReader

_BATCH_BYTES = 8 << 20
_BATCH_ITEMS = 20_000


@dataclass(frozen=True, slots=True)
class Load:
    """A batch for the sink, and the ``requests`` that it was made of.

    ``items`` counts spans, points and log records by signal. ``undecodable`` are requests that are not in the batch,
    ``points_skipped`` counts data points of kinds for which there is no record.
    """

    batch: Batch
    requests: Sequence[tuple[str, bytes]]
    items: Counter[str]
    undecodable: list[tuple[str, bytes]] = field(default_factory=list)
    points_skipped: int = 0


class Batches:
    """Batches of the signals that go to one sink.

    Args:
        reader: stands where the sink is to go on.
        wants: what the sink reads of a batch.
        processors: signal → processors before the sink; signals that are not in it do not reach it.
    """

    def __init__(
        self, reader: SpoolReader, wants: frozenset[str], processors: Mapping[str, Sequence[Processor]]
    ) -> None:
        self._reader = reader
        self._wants = wants
        self._processors = processors

    def next(self) -> Load | None:
        """The next batch (it may hold nothing for this sink, but moves its place), or ``None`` at the spool's end."""
        start = end = self._reader.position
        requests: list[tuple[str, bytes]] = []
        undecodable: list[tuple[str, bytes]] = []
        items: Counter[str] = Counter()
        spans: list[SpanRecord] = []
        events: list[EventRecord] = []
        metrics: list[MetricPoint] = []
        skipped = 0
        for position, entry in self._reader.read(_BATCH_BYTES, _BATCH_ITEMS):
            end = position
            if entry.signal not in self._processors:
                continue
            try:
                if entry.signal == "traces" and "spans" in self._wants:
                    spans += decode.spans(entry.data)
                elif entry.signal == "logs" and "events" in self._wants:
                    events += decode.events(entry.data)
                elif entry.signal == "metrics" and "metrics" in self._wants:
                    points = decode.metrics(entry.data)
                    metrics += points
                    skipped += entry.items - len(points)
                    items["metrics"] -= entry.items - len(points)
            except decode.Undecodable:
                # The receiver parsed it before it came here; if this happens all the same, it must not block the rest.
                undecodable.append((entry.signal, entry.data))
                continue
            items[entry.signal] += entry.items
            requests.append((entry.signal, entry.data))
        if end == start:
            return None
        batch = Batch(start, end, spans, events, metrics, requests if "raw" in self._wants else ())
        return Load(self._processed(batch), requests, items, undecodable, skipped)

    def _processed(self, batch: Batch) -> Batch:
        # Each signal has a chain of its own: a processor sees a batch with that signal's records only.
        spans, events, metrics = batch.spans, batch.events, batch.metrics
        empty = Batch(batch.start, batch.end)
        if chain := self._processors.get("traces"):
            spans = _through(chain, replace(empty, spans=spans)).spans
        if chain := self._processors.get("logs"):
            events = _through(chain, replace(empty, events=events)).events
        if chain := self._processors.get("metrics"):
            metrics = _through(chain, replace(empty, metrics=metrics)).metrics
        return replace(batch, spans=spans, events=events, metrics=metrics)


def _through(chain: Sequence[Processor], batch: Batch) -> Batch:
    for processor in chain:
        batch = processor(batch)
    return batch
