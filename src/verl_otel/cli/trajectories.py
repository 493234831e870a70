"""``verl-otel trajectories``: a run's trajectories by step, reward, tools, outcome."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from rich.text import Text

from verl_otel.cli import render
from verl_otel.cli.render import Column
from verl_otel.collector.archive.model import QueryError, Trajectory
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.archive.trajectories import SORT_KEYS, Comparison, Filter, Range, trajectories

if TYPE_CHECKING:
    from verl_otel.cli.runs import Subparsers

_EXAMPLES: Final = """\
examples:
  verl-otel trajectories                              the latest run's
  verl-otel trajectories RUN --step 230 --sort reward --desc
  verl-otel trajectories --step 200-230 --reward '<0.5' --tool-error
  verl-otel trajectories --partition val --min-reward 0.2 --max-reward 0.8 --limit 20
  verl-otel trajectories --group 1f3a --json | jq '.[].trace_id'
"""
_DEFAULT_LIMIT: Final = 50
_SHORT: Final = 12
_COLUMNS: Final = (
    Column("trace"),
    Column("step", right=True),
    Column("part", drop=5),
    Column("group", drop=7),
    Column("#", right=True, drop=8),
    Column("agent", drop=6),
    Column("reward", right=True),
    Column("adv", right=True, drop=1),
    Column("outcome"),
    Column("turns", right=True),
    Column("tools", right=True),
    Column("errs", right=True),
    Column("in tok", right=True, drop=4),
    Column("out tok", right=True, drop=3),
    Column("dur", right=True, drop=2),
    Column("status", drop=9),
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "trajectories",
        help="list a run's trajectories",
        description="List a run's trajectories that have ended. --json lists all that pass unless --limit is given.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument("--step", metavar="N|A-B", help="the step that asked for it, or a range (3-10, 3-, -10)")
    parser.add_argument("--partition", metavar="NAME", help="train or val")
    parser.add_argument(
        "--reward", action="append", default=[], metavar="TEST", help="such as '<0.5' or '>=1'; several: all must hold"
    )
    parser.add_argument("--min-reward", type=float, metavar="X", help="the same as --reward '>=X'")
    parser.add_argument("--max-reward", type=float, metavar="X", help="the same as --reward '<=X'")
    parser.add_argument(
        "--tool-error", action=argparse.BooleanOptionalAction, help="only with (or without) a tool that failed"
    )
    parser.add_argument(
        "--failed", action=argparse.BooleanOptionalAction, help="only those whose agent loop raised (or did not)"
    )
    parser.add_argument("--agent", metavar="NAME", help="the agent loop's name")
    parser.add_argument("--outcome", metavar="NAME", help="trained, filtered, stale or failed")
    parser.add_argument("--group", metavar="ID", help="the siblings of one prompt: a group's id or its beginning")
    parser.add_argument(
        "--sort", default="started", metavar="KEY", help=f"one of {', '.join(SORT_KEYS)}; unknown values come last"
    )
    parser.add_argument("--desc", action="store_true", help="sort falling")
    parser.add_argument("--limit", type=int, metavar="N", help=f"at most N (default: {_DEFAULT_LIMIT}, 0: all)")
    render.add_common(parser)
    parser.set_defaults(run=run)


def add_run(parser: argparse.ArgumentParser) -> None:
    """The argument RUN: a run id, a unique prefix, or ``latest``; ``--run`` says the same."""
    parser.add_argument(
        "run_id", nargs="?", metavar="RUN", help="a run id, a unique prefix of one, or `latest` (the default)"
    )
    parser.add_argument("--run", dest="run_option", metavar="RUN", help="the same as the argument")


def resolve(reader: Reader, args: argparse.Namespace) -> str:
    if args.run_id and args.run_option and args.run_id != args.run_option:
        raise QueryError(f"two runs given: {args.run_id!r} and --run {args.run_option!r}; give one")
    return reader.resolve_run(args.run_id or args.run_option or "latest")


def run(args: argparse.Namespace) -> int:
    def ask(reader: Reader) -> list[Trajectory]:
        wanted = _filter(args)
        return trajectories(reader, resolve(reader, args), wanted)

    return render.answer("trajectories", args, ask, lambda found: _show(found, args))


def _filter(args: argparse.Namespace) -> Filter:
    rewards = [Comparison.parse(item) for item in args.reward]
    if args.min_reward is not None:
        rewards.append(Comparison(">=", args.min_reward))
    if args.max_reward is not None:
        rewards.append(Comparison("<=", args.max_reward))
    limit = args.limit if args.limit is not None else 0 if args.json else _DEFAULT_LIMIT
    if limit < 0:
        raise QueryError(f"--limit {limit}: must be 0 (all) or more")
    return Filter(
        step=None if args.step is None else Range.parse(args.step),
        partition=args.partition,
        reward=tuple(rewards),
        tool_error=args.tool_error,
        failed=args.failed,
        agent=args.agent,
        outcome=args.outcome,
        group=args.group,
        sort=f"-{args.sort}" if args.desc else args.sort,
        limit=limit or None,
    )


def _show(found: list[Trajectory], args: argparse.Namespace) -> None:
    if not found:
        render.hint("no trajectory passes")
        return
    render.put(render.table(_COLUMNS, [_row(item) for item in found]))
    if len(found) == (args.limit or _DEFAULT_LIMIT) and args.limit != 0:
        render.hint(f"the first {len(found)}; --limit 0 shows all")


def _row(item: Trajectory) -> list[Text]:
    cell = render.line
    return [
        cell(item.trace_id[:_SHORT], "bold"),
        cell(render.number(item.step)),
        cell(item.partition),
        cell((item.group_id or "")[:8]),
        cell(render.number(item.group_index)),
        cell(item.agent),
        cell(render.number(item.reward)),
        cell(render.number(item.advantage)),
        cell(item.outcome or "-", "" if item.outcome in (None, "trained") else "yellow"),
        cell(render.number(item.turns)),
        cell(render.number(item.tool_calls)),
        cell(render.number(item.tool_errors), "red" if item.tool_errors else ""),
        cell(render.number(item.input_tokens)),
        cell(render.number(item.output_tokens)),
        cell(render.seconds(item.duration_s)),
        cell(item.status, "red" if item.status == "error" else ""),
    ]
