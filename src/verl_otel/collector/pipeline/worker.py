"""The process of one sink: read, decode, process, deliver, save the cursor, until told to drain or stop.

    python -m verl_otel.collector.pipeline.worker  < one line of JSON, then commands, on standard input

The collector talks to it over its standard input: the first line says what to do, a later line ``drain`` asks it to
finish what is there and exit; the end of the input (the collector died) stops it at once.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_otel.collector import processors as processor_registry
from verl_otel.collector.config import load, load_default
from verl_otel.collector.config.model import Config, Exporter
from verl_otel.collector.pipeline.batches import Batches
from verl_otel.collector.pipeline.dead_letters import DeadLetters
from verl_otel.collector.records import Batch, Position
from verl_otel.collector.sinks import registry
from verl_otel.collector.sinks.base import Counters, Reject, Retry, SinkContext
from verl_otel.collector.spool import Cursor, SpoolReader

logger = logging.getLogger(__name__)

_IDLE_S = 0.2
_TICK_S = 1.0
_SAVE_S = 0.5


class Stopped(Exception):
    """The collector is gone, or wants this process gone, while a batch was tried again and again."""


class Worker:
    """Runs one sink over the spool of ``home``."""

    def __init__(self, home: Path, config: Config, exporter: Exporter) -> None:
        self._spool = home / "spool"
        self._exporter = exporter
        self._drain = threading.Event()
        self._stop = threading.Event()
        self._random = random.Random(os.urandom(8))
        self._cursor = Cursor.load(self._spool, exporter.name)
        self._dead_letters = DeadLetters(home / "dead-letter", exporter.name)
        counters = Counters(dict(self._cursor.counters))
        state_dir = home / "state" / exporter.name.replace("/", "%2F")
        state_dir.mkdir(parents=True, exist_ok=True)
        self._counters = counters
        self._place: Position | None = None
        self._cursor.failing = False
        self._saved_at = 0.0
        context = SinkContext(exporter.name, home, state_dir, counters)
        self._sink = registry.load(exporter.type)(exporter.config, context)
        self._processors = {
            name: [
                processor_registry.FACTORIES[item.partition("/")[0]](config.processors[item], f"processors.{item}")
                for item in chain
            ]
            for name, chain in config.signals_of(exporter.name).items()
        }

    def drain(self) -> None:
        """Finish what is in the spool, then end."""
        self._drain.set()

    def stop(self) -> None:
        """End now; what is not committed comes again next time."""
        self._stop.set()

    def run(self) -> int:
        """Work until drained (0) or stopped (1)."""
        try:
            place = self._insist(self._sink.start)
            if place is not None:
                self._cursor.position = place
            self._place = self._cursor.position
            reader = SpoolReader(self._spool, self._place)
            batches = Batches(reader, self._sink.wants, self._processors)
            ticked = 0.0
            while not self._stop.is_set():
                batch = batches.next()
                if batch is not None:
                    self._deliver(batch)
                    self._place = batch.end
                    self._commit(force=False)
                elif self._drain.is_set():
                    self._attempt(lambda: self._sink.close(True))
                    self._commit(force=True)
                    return 0
                else:
                    self._commit(force=False)
                    self._drain.wait(_IDLE_S)
                if time.monotonic() - ticked > _TICK_S:
                    ticked = time.monotonic()
                    self._attempt(self._sink.tick)
                self._counters.values["undecodable"] = batches.undecodable
        except Stopped:
            pass
        self._commit(force=True)
        return 1

    def _deliver(self, batch: Batch) -> None:
        if not batch.items and not batch.raw:
            # Nothing for this sink; it is told all the same, since its place moves.
            self._insist(lambda: self._sink.deliver(batch))
            return
        try:
            self._insist(lambda: self._sink.deliver(batch))
        except Reject as error:
            self._cursor.rejected += error.count
            self._dead_letters.add(batch, str(error))
            self._note(error, failing=False)
        for name, items in (("traces", batch.spans), ("logs", batch.events), ("metrics", batch.metrics)):
            if items:
                self._cursor.delivered[name] = self._cursor.delivered.get(name, 0) + len(items)
        if batch.raw:
            self._cursor.delivered["requests"] = self._cursor.delivered.get("requests", 0) + len(batch.raw)

    def _attempt(self, call: Callable[[], Any]) -> None:
        """Call until it works, or until the sink or its time limit says that it never will."""
        try:
            self._insist(call)
        except Reject as error:
            self._cursor.rejected += error.count
            self._note(error, failing=False)

    def _insist(self, call: Callable[[], Any]) -> Any:
        """Call until it works; raises ``Reject`` when that is the sink's answer, ``Stopped`` when told to end."""
        retry = self._exporter.retry
        pause, started = retry.initial_interval, time.monotonic()
        while True:
            try:
                result = call()
            except Reject:
                raise
            except Exception as error:
                # Whatever it is, a bug included: nothing is lost by trying again, and everything by going on.
                self._cursor.retries += 1
                self._note(error, failing=True)
                self._commit(force=True)
                if retry.max_elapsed_time and time.monotonic() - started > retry.max_elapsed_time:
                    raise Reject(f"given up after {retry.max_elapsed_time:.0f}s: {error}") from error
                asked = error.after_s if isinstance(error, Retry) else None
                if self._stop.wait(asked if asked is not None else pause * self._random.uniform(0.8, 1.2)):
                    raise Stopped from None
                pause = min(pause * 2, retry.max_interval)
            else:
                if self._cursor.failing:
                    self._cursor.failing = False
                    logger.warning("%s: works again", self._exporter.name)
                return result

    def _note(self, error: Exception, failing: bool) -> None:
        text = f"{type(error).__name__}: {error}" if not isinstance(error, (Retry, Reject)) else str(error)
        if text != self._cursor.last_error or (failing and not self._cursor.failing):
            known = isinstance(error, (Retry, Reject))
            logger.warning("%s: %s", self._exporter.name, text, exc_info=None if known else error)
        self._cursor.last_error, self._cursor.last_error_at = text, time.time()
        self._cursor.failing = failing

    def _commit(self, force: bool) -> None:
        now = time.monotonic()
        if not force and now - self._saved_at < _SAVE_S:
            return
        self._saved_at = now
        if self._place is not None:
            # What was read is not yet delivered; only the end of the last delivered batch counts.
            self._cursor.position = self._sink.committed() or self._place
            self._cursor.pending_bytes = SpoolReader(self._spool, self._cursor.position).pending_bytes()
        self._cursor.counters = dict(self._counters.values)
        self._cursor.save(self._spool)


def _listen(worker: Worker) -> None:
    for line in sys.stdin:
        if line.strip() == "drain":
            worker.drain()
    worker.stop()


def main() -> int:
    order = json.loads(sys.stdin.readline())
    # A terminal's Ctrl-C goes to the whole group; the collector says in its own time what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    config = load(Path(order["config"])) if order["config"] else load_default()
    worker = Worker(Path(order["home"]), config, config.exporters[order["sink"]])
    threading.Thread(target=_listen, args=(worker,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
