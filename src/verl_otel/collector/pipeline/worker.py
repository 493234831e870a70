"""The process of one sink: read, decode, process, deliver, save the cursor, until told to drain or stop.

    python -m verl_otel.collector.pipeline.worker  < one line of JSON, then commands, on standard input

The collector talks to it over its standard input: the first line says what to do, a later line ``drain`` asks it to
finish what is there and exit. It never outlives the collector: two processes must not feed one sink.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import yaml

from verl_otel.collector import config as configuration
from verl_otel.collector import decode, logs
from verl_otel.collector import processors as processor_registry
from verl_otel.collector.config.model import Config, Exporter
from verl_otel.collector.pipeline.batches import Batches, Load
from verl_otel.collector.pipeline.dead_letters import DeadLetters
from verl_otel.collector.records import Position
from verl_otel.collector.sinks import registry
from verl_otel.collector.sinks.base import Counters, Reject, Retry, Sink, SinkContext
from verl_otel.collector.spool import Cursor, SpoolReader

logger = logging.getLogger(__name__)

_IDLE_S = 0.2
_TICK_S = 1.0
_SAVE_S = 0.5
# While the collector waits for the end, a destination that comes back is to be noticed soon.
_DRAIN_PAUSE_S = 1.0
# A destination's word for when to come again is taken between these.
_SHORTEST_PAUSE_S = 0.05
_LONGEST_ASKED_S = 3600.0
_MAX_ERROR = 1_000
# How long the end may take when the collector is gone; a sink may hang in its destination's SDK.
_ORPHAN_S = 5.0
_PR_SET_PDEATHSIG = 1


class Stopped(Exception):
    """The collector wants this process gone, or is gone itself."""


class Worker:
    """Runs one sink over the spool of ``home``."""

    def __init__(self, home: Path, config: Config, exporter: Exporter) -> None:
        self._home = home
        self._spool = home / "spool"
        self._exporter = exporter
        self._wake = threading.Condition()
        self._draining = False
        self._stopped = False
        self._random = random.Random(os.urandom(8))
        self._cursor = Cursor.load(self._spool, exporter.name)
        self._cursor.failing = False
        self._counters = Counters(dict(self._cursor.counters))
        self._dead_letters = DeadLetters(home / "dead-letter", exporter.name)
        self._sink: Sink | None = None
        self._place: Position | None = None
        self._reader: SpoolReader | None = None
        self._saved_at = 0.0
        self._processors = {
            name: [
                processor_registry.FACTORIES[item.partition("/")[0]](config.processors[item], f"processors.{item}")
                for item in chain
            ]
            for name, chain in config.processors_of(exporter.name).items()
        }

    def drain(self) -> None:
        """Finish what is in the spool, then end."""
        with self._wake:
            self._draining = True
            self._wake.notify_all()

    def stop(self) -> None:
        """End now; what is not committed comes again next time."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()

    def run(self) -> int:
        """Work until drained (0) or stopped (1)."""
        try:
            self._work()
        except Stopped:
            self._commit(force=True)
            return 1
        self._commit(force=True)
        return 0

    def _work(self) -> None:
        sink = self._sink = self._insist(self._made)
        place = self._insist(sink.start)
        self._place = self._cursor.position if place is None else place
        self._reader = SpoolReader(self._spool, self._place)
        batches = Batches(self._reader, sink.wants, self._processors)
        ticked = 0.0
        while True:
            # Asked before reading: what was acknowledged before the order to drain is then seen.
            draining = self._draining
            load = batches.next()
            if load is not None:
                self._deliver(sink, load)
                self._place = load.batch.end
            elif draining:
                self._unless_refused(lambda: sink.close(True))
                return
            else:
                self._pause(_IDLE_S)
            if self._stopped:
                raise Stopped
            if time.monotonic() - ticked > _TICK_S:
                ticked = time.monotonic()
                self._unless_refused(sink.tick)
            self._commit(force=False)

    def _made(self) -> Sink:
        state_dir = self._home / "state" / self._exporter.name.replace("/", "%2F")
        state_dir.mkdir(parents=True, exist_ok=True)
        context = SinkContext(self._exporter.name, self._home, state_dir, self._counters)
        return registry.load(self._exporter.type)(self._exporter.config, context)

    def _deliver(self, sink: Sink, load: Load) -> None:
        if load.undecodable:
            self._set_aside(load.undecodable, "cannot be decoded", len(load.undecodable))
        if load.points_skipped:
            self._counters.add("metrics.points_of_unsupported_kind", load.points_skipped)
        refused: Counter[str] = Counter()
        try:
            # A batch without a record for this sink goes there all the same, since its place moves.
            self._insist(lambda: sink.deliver(load.batch), sum(load.items.values()))
        except Reject as error:
            self._note(error, failing=False)
            refused = _refused(error, load)
            self._set_aside(error.requests or load.requests, _text(error), error.count)
        for name, items in (load.items - refused).items():
            self._cursor.delivered[name] = self._cursor.delivered.get(name, 0) + items

    def _set_aside(self, requests: Any, reason: str, records: int) -> None:
        self._cursor.rejected += records
        self._insist(lambda: self._dead_letters.add(requests, reason, records))

    def _unless_refused(self, call: Callable[[], None]) -> None:
        """Call until it works, or the sink says that it never will."""
        try:
            self._insist(call, 0)
        except Reject as error:
            self._cursor.rejected += error.count
            self._note(error, failing=False)

    def _insist(self, call: Callable[[], Any], records: int | None = None) -> Any:
        """Call until it works. ``records`` is how many are lost when it never does; ``None``: giving up is no answer.

        Raises:
            Reject: that is the sink's answer, or ``max_elapsed_time`` is over (not where ``records`` is ``None``).
            Stopped: told to end.
        """
        retry = self._exporter.retry
        pause, started = max(retry.initial_interval, _SHORTEST_PAUSE_S), time.monotonic()
        while True:
            try:
                result = call()
            except BaseException as error:
                # Also what is no ``Exception``: an SDK that calls ``sys.exit`` while this drains would look drained.
                if records is not None and isinstance(error, Reject):
                    raise
                # Whatever it is, a bug included: nothing is lost by trying again, and everything by going on.
                self._cursor.retries += 1
                self._note(error, failing=True)
                self._commit(force=True)
                if records is not None and 0 < retry.max_elapsed_time < time.monotonic() - started:
                    text = f"given up after {retry.max_elapsed_time:.0f}s: {_text(error)}"
                    raise Reject(text, records) from error
                own = pause * self._random.uniform(0.8, 1.2)
                self._pause(_asked(error, retry.initial_interval) or own)
                pause = min(pause * 2, retry.max_interval, _DRAIN_PAUSE_S if self._draining else retry.max_interval)
                if self._stopped:
                    raise Stopped from None
            else:
                if self._cursor.failing:
                    self._cursor.failing = False
                    logger.warning("%s: works again", self._exporter.name)
                return result

    def _pause(self, seconds: float) -> None:
        """Wait, but not beyond an order to drain or stop that comes meanwhile."""
        with self._wake:
            draining = self._draining
            self._wake.wait_for(lambda: self._stopped or self._draining != draining, seconds)

    def _note(self, error: BaseException, failing: bool) -> None:
        known = isinstance(error, (Retry, Reject, OSError))
        text = _text(error) if known else f"{type(error).__name__}: {_text(error)}"
        if text != self._cursor.last_error or (failing and not self._cursor.failing):
            logger.warning("%s: %s", self._exporter.name, text, exc_info=None if known else error)
        if failing and not self._cursor.failing:
            self._cursor.failing_since = time.time()
        self._cursor.last_error, self._cursor.last_error_at = text, time.time()
        self._cursor.failing = failing

    def _commit(self, force: bool) -> None:
        now = time.monotonic()
        if not force and now - self._saved_at < _SAVE_S:
            return
        self._saved_at = now
        if self._sink is not None and self._place is not None:
            # What was read is not yet delivered; only the end of the last delivered batch counts.
            self._cursor.position = self._sink.committed() or self._place
            self._cursor.pending_bytes = SpoolReader(self._spool, self._cursor.position).pending_bytes()
        if self._reader is not None and self._reader.skipped_bytes:
            self._counters.add("spool.skipped_bytes", self._reader.skipped_bytes)
            self._reader.skipped_bytes = 0
        self._cursor.counters = dict(self._counters.values)
        try:
            self._cursor.save(self._spool)
        except OSError as error:
            # On a full disk the sinks go on; after a crash they would get some batches again.
            logger.error("%s: its cursor cannot be saved: %s", self._exporter.name, error)


def _asked(error: BaseException, least: float) -> float | None:
    """The pause that the destination asked for, if it did and the answer makes sense."""
    asked = error.after_s if isinstance(error, Retry) else None
    if asked is None or not asked > 0:
        # "At once" is no pause: it would be asked as fast as it can answer.
        return None
    return min(max(asked, least, _SHORTEST_PAUSE_S), _LONGEST_ASKED_S)


def _text(error: BaseException) -> str:
    """What an error says; SDKs have some that say a whole page, and some that fail to say anything."""
    try:
        # Half a character, as broken decoding leaves it, cannot be printed.
        return str(error)[:_MAX_ERROR].encode("utf-8", "replace").decode()
    except Exception:
        return "(without a text)"


def _refused(error: Reject, load: Load) -> Counter[str]:
    """How many items of a batch were refused, by signal; a guess where the sink gives only their number."""
    refused: Counter[str] = Counter()
    for signal_name, data in error.requests:
        refused[signal_name] += decode.count(signal_name, decode.parse(signal_name, data))
    if not error.requests:
        left = error.count
        for signal_name, items in load.items.items():
            refused[signal_name] = min(left, items)
            left -= refused[signal_name]
    return refused


def _listen(worker: Worker, orders: TextIO) -> None:
    for line in orders:
        if line.strip() == "drain":
            worker.drain()
    worker.stop()
    time.sleep(_ORPHAN_S)
    os._exit(1)


def _die_with(parent: int) -> None:
    """End with the collector even when it is killed while a sink hangs (Linux; elsewhere the input's end does it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> int:
    # What a sink starts must not read the orders.
    orders = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    order = json.loads(orders.readline())
    _die_with(order["parent"])
    config = configuration.check(yaml.safe_load(order["config"]))
    logs.set_up(config.log_level)
    worker = Worker(Path(order["home"]), config, config.exporters[order["sink"]])
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    threading.Thread(target=_listen, args=(worker, orders), daemon=True).start()
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
