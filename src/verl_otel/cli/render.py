"""How the commands that read the archive print: JSON for programs, rich tables for people, one line for mistakes.

Exit codes: 0 the question was answered (an empty list is an answer), 1 the archive cannot be read, 2 the question
is a mistake (an unknown run or trace, a filter that is none, no such folder). With 1 and 2, one line on stderr says
what, where and what instead.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from verl_otel.cli.options import add_home
from verl_otel.collector.archive.model import QueryError, Unreadable
from verl_otel.collector.archive.reader import Reader

OK: Final = 0
UNREADABLE: Final = 1
MISTAKE: Final = 2

_PIPED_WIDTH: Final = 200
_T = TypeVar("_T")


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that every command here has."""
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def answer(command: str, args: argparse.Namespace, ask: Callable[[Reader], _T], show: Callable[[_T], None]) -> int:
    """Ask the archive and print what it says, as JSON or with ``show``; returns the exit code."""
    try:
        found = ask(Reader(args.home))
    except (QueryError, Unreadable) as problem:
        hint(f"verl-otel {command}: {problem}")
        return MISTAKE if isinstance(problem, QueryError) else UNREADABLE
    try:
        if args.json:
            print(to_json(found))
        else:
            show(found)
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def plain(value: Any) -> Any:
    """``value`` as what JSON has: times as ISO 8601 UTC; ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def to_json(value: Any) -> str:
    return json.dumps(plain(value), indent=2, allow_nan=False)


def clean(text: str) -> str:
    """``text`` with all that would steer a terminal (escape, control and direction characters) made visible."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character == "\n":
        return character
    if character == "\t":
        return "    "
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        # A joiner inside an emoji steers nothing.
        return character if character in "\u200c\u200d" else character.encode("unicode_escape").decode()
    return character


def text(value: object, style: str = "") -> Text:
    """A cell or line of ``value``, with nothing in it read as markup."""
    return Text(clean("" if value is None else str(value)), style=style)


def line(value: object, style: str = "") -> Text:
    """As ``text``, on one line."""
    return text("" if value is None else str(value).replace("\n", " ⏎ "), style)


def number(value: float | int | None, digits: int = 4) -> str:
    """A number for people; ``-`` for none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{value:.{digits}g}"


def moment(value: datetime | None) -> str:
    return "-" if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f}ms"
    if value < 120:
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 120 else f"{minutes // 60}h{minutes % 60:02d}m"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would end the process with code 1; ``answer`` knows what to do.
        raise BrokenPipeError


def console() -> Console:
    """A console on stdout; without a terminal it has no colors and is wide, so that tables are not folded."""
    terminal = sys.stdout.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _PIPED_WIDTH
    return _Console(width=width, highlight=False, emoji=False, markup=False, soft_wrap=False)


class Column(NamedTuple):
    """``drop``: in a terminal too narrow for all, the columns with the highest number go first; 0 never goes."""

    heading: str
    right: bool = False
    drop: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> Table:
    widths = [
        max([len(column.heading), *(row[index].cell_len for row in rows)]) for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    room = console().width
    for index in sorted(shown, key=lambda index: -columns[index].drop):
        if columns[index].drop == 0 or sum(widths[kept] + 1 for kept in shown) - 1 <= room:
            break
        shown.remove(index)
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index in shown:
        made.add_column(columns[index].heading, justify="right" if columns[index].right else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(row[index] for index in shown))
    return made


def put(*renderables: RenderableType) -> None:
    out = console()
    for renderable in renderables:
        out.print(renderable)


def hint(message: str) -> None:
    """A remark for people, on stderr, so that a pipe has only the answer."""
    print(clean(message), file=sys.stderr)
