"""Where the collector's own log lines go: standard error, for itself and its workers alike."""

from __future__ import annotations

import logging
import sys

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def set_up(level: str) -> None:
    """Log from ``level`` (``debug``, ``info``, ``warn``, ``error``) on; of other packages, warnings at least."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("verl_otel").setLevel(_LEVELS[level])
