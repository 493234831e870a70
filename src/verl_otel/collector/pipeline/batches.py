"""Reads the spool in batches and decodes what a sink wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verl_otel.collector import decode
from verl_otel.collector.processors import Processor
from verl_otel.collector.records import Batch, EventRecord, MetricPoint, SpanRecord
from verl_otel.collector.spool import SpoolReader

_BATCH_BYTES = 8 << 20


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
        self.undecodable = 0

    def next(self) -> Batch | None:
        """The next batch (it may hold nothing for this sink, but moves its place), or ``None`` at the spool's end."""
        start = end = self._reader.position
        raw: list[tuple[str, bytes]] = []
        spans: list[SpanRecord] = []
        events: list[EventRecord] = []
        metrics: list[MetricPoint] = []
        for position, entry in self._reader.read(_BATCH_BYTES):
            end = position
            if entry.signal not in self._processors:
                continue
            if "raw" in self._wants:
                raw.append((entry.signal, entry.data))
            try:
                if entry.signal == "traces" and "spans" in self._wants:
                    spans += decode.spans(entry.data)
                elif entry.signal == "logs" and "events" in self._wants:
                    events += decode.events(entry.data)
                elif entry.signal == "metrics" and "metrics" in self._wants:
                    metrics += decode.metrics(entry.data)
            except decode.Undecodable:
                # The receiver parsed it before it came here; if this happens all the same, it must not block the rest.
                self.undecodable += 1
        if end == start:
            return None
        return self._processed(Batch(start, end, spans, events, metrics, raw))

    def _processed(self, batch: Batch) -> Batch:
        chains = [(signal, chain) for signal, chain in self._processors.items() if chain]
        if not chains:
            return batch
        parts = {"traces": batch.spans, "logs": batch.events, "metrics": batch.metrics}
        for signal, chain in chains:
            names = {"traces": "spans", "logs": "events", "metrics": "metrics"}
            part = Batch(batch.start, batch.end, **{names[signal]: parts[signal]})  # type: ignore[arg-type]
            for processor in chain:
                part = processor(part)
            parts[signal] = getattr(part, names[signal])
        return Batch(batch.start, batch.end, parts["traces"], parts["logs"], parts["metrics"], batch.raw)  # type: ignore[arg-type]
