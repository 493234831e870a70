"""A folder for PYTHONPATH: its ``sitecustomize`` switches verl-otel on in every Python process of a run."""

from __future__ import annotations

from pathlib import Path


def path() -> str:
    """The folder to put in front of PYTHONPATH."""
    return str(Path(__file__).parent)
