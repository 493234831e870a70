"""What both receivers do with a request: see that it is one, put it on disk, count it."""

from __future__ import annotations

import asyncio
from collections import Counter

from verl_otel.collector import decode
from verl_otel.collector.spool import SpoolFull, SpoolWriter

RETRY_AFTER_S = 5


class Intake:
    """The way from a receiver to the spool; ``accepted`` and ``refused`` count items by signal."""

    def __init__(self, spool: SpoolWriter) -> None:
        self._spool = spool
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    async def take(self, signal: str, data: bytes) -> None:
        """Return once ``data`` is on disk.

        Raises:
            Undecodable: it is no request of this signal; nothing was kept, and sending it again is of no use.
            SpoolFull: there is no room now; the sender should try again.
        """
        items = decode.count(signal, decode.parse(signal, data))
        if items == 0:
            return
        try:
            await asyncio.wrap_future(self._spool.append(signal, data))
        except SpoolFull:
            self.refused[signal] += items
            raise
        self.accepted[signal] += items
