"""One thread per process for work that must not hold up training: decoding tokens, encoding big events, flushing.

Jobs run in the order they were given, so a trajectory's root span, given last, also ends last.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from verl_otel.telemetry import guard

_MAX_JOBS = 100_000


class Background:
    """A queue of jobs and the daemon thread that runs them; the thread starts with the first job."""

    def __init__(self, max_jobs: int = _MAX_JOBS) -> None:
        self._max_jobs = max_jobs
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A forked child has the queue but not the thread; the parent will run those jobs.
        self._jobs: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[..., None], *args: Any) -> bool:
        """Queue ``job(*args)``; False (and nothing queued) when too much is waiting."""
        if self._jobs.qsize() >= self._max_jobs:
            guard.count("dropped.background_jobs")
            guard.warn_once(
                "background",
                f"more than {self._max_jobs} jobs are waiting; content is left out until it eases",
            )
            return False
        self._jobs.put((job, args))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="verl-otel-background", daemon=True)
                    self._thread.start()
        return True

    def _run(self) -> None:
        while True:
            job, args = self._jobs.get()
            with guard.guarded("background"):
                job(*args)

    def drain(self, timeout: float) -> bool:
        """Wait until all that was queued before has run, at most ``timeout`` seconds."""
        if self._thread is None or threading.current_thread() is self._thread:
            return True
        done = threading.Event()
        self._jobs.put((done.set, ()))
        deadline = time.monotonic() + timeout
        while not done.wait(min(0.1, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or not self._thread.is_alive():
                return False
        return True
