"""What both receivers do with a request: see that it is one, put it on disk, count it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from verl_otel.collector import decode
from verl_otel.collector.receivers import otlp_json
from verl_otel.collector.spool import SpoolFull, SpoolWriter

RETRY_AFTER_S = 5
# JSON takes a thousand times as long as protobuf: a second for a megabyte, in which nobody else would be heard.
_LARGE_JSON = 32 << 10


class NotTaken(ValueError):
    """No pipeline is configured for the signal; sending it again is of no use."""


class Intake:
    """The way from a receiver to the spool.

    ``accepted`` and ``refused`` count items by signal, ``undecodable`` requests. ``signals`` are those that have a
    pipeline.
    """

    def __init__(self, spool: SpoolWriter, signals: Collection[str]) -> None:
        self._spool = spool
        self._signals = frozenset(signals)
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.undecodable: Counter[str] = Counter()

    async def take(self, signal: str, data: bytes, is_json: bool = False) -> None:
        """Return once ``data`` (protobuf, or JSON) is on disk.

        Raises:
            NotTaken: there is no pipeline for this signal.
            Undecodable: it is no request of this signal; nothing was kept, and sending it again is of no use.
            SpoolFull: there is no room now; the sender should try again.
        """
        if signal not in self._signals:
            raise NotTaken(f"this collector has no pipeline for {signal}")
        try:
            if is_json and len(data) > _LARGE_JSON:
                data = await asyncio.to_thread(otlp_json.to_protobuf, signal, data)
            elif is_json:
                data = otlp_json.to_protobuf(signal, data)

            items = decode.count(signal, decode.parse(signal, data))
        except decode.Undecodable:
            self.undecodable[signal] += 1
            raise
        if items == 0:
            return
        try:
            await asyncio.wrap_future(self._spool.append(signal, data, items))
        except SpoolFull:
            self.refused[signal] += items
            raise
        self.accepted[signal] += items
