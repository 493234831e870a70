"""``verl-otel runs``: which runs there are and how they stand."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from verl_otel.cli import render
from verl_otel.cli.render import Column
from verl_otel.collector.archive.model import Run
from verl_otel.collector.archive.runs import runs

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EXAMPLES: Final = """\
examples:
  verl-otel runs
  verl-otel runs --home /data/otel --json | jq '.[0].status'
"""
_COLUMNS: Final = (
    Column("run"),
    Column("project", drop=3),
    Column("experiment", drop=1),
    Column("status"),
    Column("attempt", right=True, drop=2),
    Column("started (UTC)", drop=4),
    Column("last record (UTC)", drop=5),
    Column("steps", right=True),
    Column("trajectories", right=True),
)
_STYLES: Final = {"running": "cyan", "finished": "green", "failed": "red", "crashed": "red", "interrupted": "yellow"}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "runs",
        help="list the runs in the archive",
        description="List the runs in the archive, the one begun last first. A run is `running` until its end is told.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--project", help="only runs of this project")
    render.add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    def ask(reader: Any) -> list[Run]:
        return [found for found in runs(reader) if args.project in (None, found.project)]

    return render.answer("runs", args, ask, lambda found: _show(found, args))


def _show(found: list[Run], args: argparse.Namespace) -> None:
    if not found:
        render.hint(f"no runs in {args.home} yet")
        return
    rows = [
        [
            render.line(item.run_id, "bold"),
            render.line(item.project),
            render.line(item.experiment),
            render.line(item.status, _STYLES.get(item.status, "")),
            render.line(item.attempt),
            render.line(render.moment(item.started_at)),
            render.line(render.moment(item.last_seen_at)),
            render.line(item.steps),
            render.line(item.trajectories),
        ]
        for item in found
    ]
    render.put(render.table(_COLUMNS, rows))
