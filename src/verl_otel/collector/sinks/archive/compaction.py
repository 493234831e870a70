"""Which small files of a run are to become one bigger file, and when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Files of like size are merged, so that a row is rewritten once per class and not once per flush.
_CLASSES: Final = (256 * 1024, 2 * 1024 * 1024, 16 * 1024 * 1024)
_FAN_IN: Final = 16


def choose(sizes: Mapping[Path, int], target_bytes: int, idle: bool = False) -> list[Path]:
    """The files of one run and signal to merge now, in spool order; empty when there is nothing to do.

    ``sizes`` are in bytes. A file of half of ``target_bytes`` or more is final. An ``idle`` run (one that gets no
    more rows) has all that is not final merged, however few.
    """
    final = target_bytes // 2
    bounds = [bound for bound in _CLASSES if bound < final] + [final]
    files = sorted(path for path, size in sizes.items() if size < final)
    if idle:
        return _fill(files, sizes, target_bytes)
    lower = 0
    for bound in bounds:
        alike = [path for path in files if lower <= sizes[path] < bound]
        if len(alike) >= _FAN_IN:
            return _fill(alike, sizes, target_bytes)
        lower = bound
    return []


def _fill(files: list[Path], sizes: Mapping[Path, int], target_bytes: int) -> list[Path]:
    chosen: list[Path] = []
    total = 0
    for path in files:
        if chosen and total + sizes[path] > target_bytes:
            break
        chosen.append(path)
        total += sizes[path]
    return chosen if len(chosen) > 1 else []
