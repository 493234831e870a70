"""Options that several commands have."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_home(parser: argparse.ArgumentParser) -> None:
    """``--home``: where everything is kept."""
    parser.add_argument(
        "--home",
        type=Path,
        default=Path(os.environ.get("VERL_OTEL_HOME") or "verl-otel-data"),
        metavar="DIR",
        help="where everything is kept (default: VERL_OTEL_HOME, or ./verl-otel-data)",
    )
