"""``verl-otel metrics``: a run's scalars under verl's exact keys."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from verl_otel.cli import render
from verl_otel.cli.render import Column
from verl_otel.cli.trajectories import add_run, resolve
from verl_otel.collector.archive.metrics import metrics
from verl_otel.collector.archive.model import MetricValue
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.archive.trajectories import Range

if TYPE_CHECKING:
    from verl_otel.cli.runs import Subparsers

_EXAMPLES: Final = """\
examples:
  verl-otel metrics                                   all of the latest run's
  verl-otel metrics RUN --key 'critic/rewards/*' --step 200-230
  verl-otel metrics --key 'val-core/*' --json
"""
_COLUMNS: Final = (Column("step", right=True), Column("key"), Column("value", right=True))


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "metrics",
        help="list a run's scalars",
        description="List a run's scalars by step under verl's exact keys. --json: a list of {step, key, value} with "
        'exact floats; NaN and infinities, which JSON lacks, are the strings "NaN", "Infinity" and "-Infinity".',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument("--key", metavar="GLOB", help="only keys that match, such as 'critic/*' (* also matches /)")
    parser.add_argument("--step", metavar="N|A-B", help="a step or a range (3-10, 3-, -10)")
    render.add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    def ask(reader: Reader) -> list[MetricValue]:
        steps = None if args.step is None else Range.parse(args.step)
        return metrics(reader, resolve(reader, args), args.key, steps)

    return render.answer("metrics", args, ask, _show)


def _show(found: list[MetricValue]) -> None:
    if not found:
        render.hint("no metric matches")
        return
    rows = [
        [
            render.line(item.step),
            render.line(item.key),
            render.line(render.number(item.value, 6) if isinstance(item.value, float) else item.value),
        ]
        for item in found
    ]
    render.put(render.table(_COLUMNS, rows))
