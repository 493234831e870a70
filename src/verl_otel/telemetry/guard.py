"""The one guard through which everything of ours runs inside a training process.

An error of ours never reaches training and is never silent: it is counted by feature, logged once for each feature
and kind of error, and sent as a metric, from which ``verl-otel doctor`` shows it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("verl_otel")

_lock = threading.Lock()
_counts: Counter[str] = Counter()
_seen: set[tuple[str, str]] = set()


def count(name: str, amount: int = 1) -> None:
    """Count something that users should be able to see (``dropped.spans``, ``error.tracking``…)."""
    with _lock:
        _counts[name] += amount


def counts() -> dict[str, int]:
    """What was counted in this process so far."""
    with _lock:
        return dict(_counts)


def report(feature: str, error: BaseException) -> None:
    """Count ``error`` under ``feature``, and log it if it is the first of its kind."""
    key = (feature, type(error).__name__)
    with _lock:
        _counts[f"error.{feature}"] += 1
        first = key not in _seen
        _seen.add(key)
    if first:
        logger.warning(
            "verl-otel: %s failed, training goes on (further ones are only counted): %s: %s",
            feature,
            type(error).__name__,
            error,
            exc_info=(type(error), error, error.__traceback__),
        )


def warn_once(feature: str, message: str) -> None:
    """Log ``message`` once for ``feature``."""
    with _lock:
        if (feature, message) in _seen:
            return
        _seen.add((feature, message))
    logger.warning("verl-otel: %s", message)


@contextmanager
def guarded(feature: str) -> Iterator[None]:
    """Run a piece of ours: whatever it raises is reported and goes no further."""
    try:
        yield
    except Exception as error:
        report(feature, error)
