"""The way out of a training process: a bounded queue and one thread that hands batches to a stock OTLP exporter.

It differs from the SDK's batch processor in what a training process needs: a batch that the endpoint did not take is
tried again, not lost; what does not fit is dropped and counted; a flush can be asked for without waiting; and the
end of the process waits for a bounded time only.
"""

from __future__ import annotations

import collections
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from verl_otel.telemetry import guard

_BATCH = 512
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_sending = threading.local()


class Exporter(Protocol):
    """What the SDK's span and log exporters have in common."""

    def export(self, batch: Sequence[Any], /) -> Any: ...
    def shutdown(self) -> None: ...


class Outlet:
    """Queues finished items (spans or log records) and exports them from a daemon thread.

    Args:
        kind: what the items are called in counters, such as ``spans``.
        make_exporter: called once in the thread, with the first batch.
        interval_s: longest time that an item waits before it is sent.
        capacity: items kept while the endpoint does not answer; beyond it new ones are dropped and counted.
        max_bytes: the same in bytes of their attributes' text, which is what makes an item large.
        retry_for_s: how long one batch is tried again before it is dropped and counted.
    """

    def __init__(
        self,
        kind: str,
        make_exporter: Callable[[], Exporter],
        interval_s: float,
        capacity: int,
        retry_for_s: float,
        max_bytes: int = 256 << 20,
    ) -> None:
        self._kind = kind
        self._make_exporter = make_exporter
        self._interval_s = interval_s
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._retry_for_s = retry_for_s
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A forked child must neither send what its parent will send nor wait for a thread that it does not have.
        self._items: collections.deque[tuple[int, Any]] = collections.deque()
        self._bytes = 0
        self._exporter: Exporter | None = None
        self._export: Callable[..., Any] = lambda _: None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._closing = False
        self._give_up = threading.Event()

    def put(self, item: Any) -> None:
        """Queue one item. Never blocks."""
        size = text_bytes(item)
        if len(self._items) >= self._capacity or self._bytes + size > self._max_bytes or self._closing:
            guard.count(f"dropped.{self._kind}")
            guard.warn_once("outlet", f"{self._kind} are dropped: {len(self._items)} are waiting for the endpoint")
            return
        self._idle.clear()
        self._items.append((size, item))
        # Unguarded sums of several threads may drift by an item; the bound is one of order, not of bytes.
        self._bytes += size
        if self._thread is None:
            self._start()
        if len(self._items) >= _BATCH:
            self._wake.set()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"verl-otel-{self._kind}", daemon=True)
                self._thread.start()

    def flush_soon(self) -> None:
        """Send what is queued without waiting for the interval; returns at once."""
        self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued and wait for it, at most ``timeout_s`` seconds; False if some is left."""
        self._wake.set()
        return self._idle.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Send what is left and stop; False if some had to be given up after ``timeout_s`` seconds."""
        done = self.flush(timeout_s)
        self._closing = True
        if not done:
            guard.count(f"dropped.{self._kind}", len(self._items))
        self._give_up.set()
        self._wake.set()
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            with guard.guarded("outlet"):
                exporter.shutdown()
        return done

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            while self._items and not self._closing:
                batch: list[Any] = []
                while self._items and len(batch) < _BATCH:
                    size, item = self._items.popleft()
                    self._bytes -= size
                    batch.append(item)
                with guard.guarded("outlet"):
                    self._send(batch)
            if not self._items:
                self._idle.set()
                # An item that came between the two lines above must not leave the outlet looking idle.
                if self._items:
                    self._idle.clear()

    def _send(self, batch: list[Any]) -> None:
        deadline = time.monotonic() + self._retry_for_s
        pause = _FIRST_PAUSE_S
        if self._exporter is None:
            self._exporter = self._make_exporter()
            with guard.guarded("outlet"):
                calm(self._exporter)
            self._export = quietly(self._exporter.export)
        while True:
            result = self._export(batch)
            if getattr(result, "name", "SUCCESS") == "SUCCESS":
                guard.count(f"sent.{self._kind}", len(batch))
                return
            guard.count(f"retried.{self._kind}")
            guard.warn_once("endpoint", "the OTLP endpoint does not take data; trying again in the background")
            if time.monotonic() > deadline or self._give_up.wait(pause) or self._closing:
                guard.count(f"dropped.{self._kind}", len(batch))
                return
            pause = min(pause * 2, _LONGEST_PAUSE_S)


def text_bytes(item: Any) -> int:
    """Roughly how much text a span or log record carries."""
    record = getattr(item, "log_record", item)
    attributes = getattr(record, "attributes", None) or {}
    size = sum(len(value) for value in attributes.values() if type(value) is str)
    body = getattr(record, "body", None)
    if isinstance(body, Mapping):
        size += sum(len(value) for value in body.values() if type(value) is str) + 16 * len(body)
    return size


class _OwnExportsFilter(logging.Filter):
    """Hides the exporters' complaint about each failed try of ours: the outlet counts them and says it once."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(_sending, "active", False)


_filter = _OwnExportsFilter()
_jitter = random.Random(os.urandom(16))
_EXPORTERS = "opentelemetry.exporter.otlp."


class _Failed:
    """The answer of an exporter that raised; older ones do when the endpoint is not there."""

    name = "FAILURE"

    def __init__(self, error: Exception) -> None:
        self.error = error


def quietly(export: Callable[..., Any]) -> Callable[..., Any]:
    """``export`` as newer exporters have it: a failure is an answer, not an exception, and writes no log line."""

    def export_quietly(*args: Any, **kwargs: Any) -> Any:
        _sending.active = True
        try:
            return export(*args, **kwargs)
        except Exception as error:
            return _Failed(error)
        finally:
            _sending.active = False

    return export_quietly


def calm(exporter: Any) -> None:
    """Keep the exporters off the global ``random`` (their backoff draws from it at every export) and off the log.

    verl seeds the global ``random`` alike in several processes and draws from it in training code, which telemetry
    must not disturb.
    """
    own = type(exporter).__module__
    # A copy is made in one go; other threads import modules all the time.
    for name, module in sys.modules.copy().items():
        if name == own or name.startswith(_EXPORTERS):
            if getattr(module, "random", None) is random:
                module.random = _jitter  # type: ignore[attr-defined]
            module_logger = getattr(module, "_logger", None)
            if isinstance(module_logger, logging.Logger):
                module_logger.addFilter(_filter)
