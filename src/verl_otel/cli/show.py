"""``verl-otel show``: a trajectory's conversation, timings and rewards, or a training step's phases and ranks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text
from rich.tree import Tree

from verl_otel import semconv
from verl_otel.cli import render
from verl_otel.collector.archive.model import Message, QueryError, SpanNode, Trace, Trajectory
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.archive.trace import find_step, show

if TYPE_CHECKING:
    from verl_otel.cli.runs import Subparsers

_EXAMPLES: Final = """\
examples:
  verl-otel show 4be1f02c9a77                 a trajectory, by the beginning of its trace id
  verl-otel show 4be1f02c9a77 --full          all of its text
  verl-otel show --step 230 --run RUN         a training step: phases, ranks, metrics
  verl-otel show 4be1f02c9a77 --json | jq -r '.messages[] | "\\(.role): \\(.content)"'
"""
_FOLDED_LINES: Final = 6
_EMPTY: Final[dict[str, Any]] = dict.fromkeys(Trajectory.__dataclass_fields__)
_TOLD_ELSEWHERE: Final = frozenset(
    {"exception", *(getattr(semconv.Event, name) for name in vars(semconv.Event) if name.isupper())}
)
_ROLE_STYLES: Final = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "show",
        help="show one trajectory or training step",
        description="Show one trace: a trajectory with its turns, tool calls and reward, or a training step.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace_id", nargs="?", metavar="TRACE_ID", help="a trace id or a unique prefix of one")
    parser.add_argument("--step", type=int, metavar="N", help="training step N instead of a trace id")
    parser.add_argument("--run", dest="run_id", metavar="RUN", help="look only in this run (--step: default latest)")
    parser.add_argument("--full", action="store_true", help="all text, not only the beginning of each")
    render.add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    def ask(reader: Reader) -> Trace:
        if (args.trace_id is None) == (args.step is None):
            raise QueryError("give either a TRACE_ID (`verl-otel trajectories` lists them) or --step N")
        run_id = reader.resolve_run(args.run_id or "latest") if args.run_id or args.step is not None else None
        if args.step is not None and run_id is not None:
            return show(reader, find_step(reader, run_id, args.step), run_id)
        return show(reader, args.trace_id, run_id)

    if args.json:
        return render.answer("show", args, lambda reader: document(ask(reader)), lambda _: None)
    return render.answer("show", args, ask, lambda trace: _show(trace, args.full))


def document(trace: Trace) -> dict[str, Any]:
    """The JSON of ``show``: a trajectory's own keys (null for a step's trace), then what is in it."""
    made = render.plain(trace)
    found = made.pop("trajectory")
    for key, value in _EMPTY.items():
        made.setdefault(key, value)
    made.update(found or {})
    made["messages"] = [
        {key: value for key, value in message.items() if key in ("role", "content") or value}
        for message in made["messages"]
    ]
    return dict(made)


def _show(trace: Trace, full: bool) -> None:
    render.put(_heading(trace), "")
    if trace.messages:
        for message in trace.messages:
            render.put(*_message(message, full))
        render.put("")
    for node in trace.spans:
        render.put(_tree(node, full))


def _heading(trace: Trace) -> Text:
    made = Text()
    made.append_text(render.line(f"{trace.type or 'trace'} {trace.trace_id}", "bold"))
    made.append_text(render.line(f"  run {trace.run_id}"))
    facts: list[tuple[str, object]] = [("step", trace.step)]
    if trace.trajectory is not None:
        item = trace.trajectory
        facts += [
            ("partition", item.partition),
            ("agent", item.agent),
            ("reward", None if item.reward is None else render.number(item.reward)),
            ("advantage", None if item.advantage is None else render.number(item.advantage)),
            ("outcome", item.outcome),
            ("trained at step", item.trained_step),
            ("turns", item.turns),
            ("tool calls", item.tool_calls),
            ("tool errors", item.tool_errors),
            ("tokens in", item.input_tokens),
            ("tokens out", item.output_tokens),
            ("finish", item.finish),
        ]
    facts += [("started", render.moment(trace.started_at)), ("duration", render.seconds(trace.duration_s))]
    for name, value in facts:
        if value is not None:
            made.append(f"\n  {name:<16}")
            made.append_text(render.line(value))
    made.append(f"\n  {'status':<16}")
    made.append_text(render.line(trace.status, "red" if trace.status == "error" else ""))
    if trace.truncated:
        made.append("\n  some content was longer than the limit and was cut", style="yellow")
    return made


def _message(message: Message, full: bool) -> list[Text]:
    heading = Text()
    heading.append_text(render.line(message.role, _ROLE_STYLES.get(message.role, "bold")))
    if message.name:
        heading.append_text(render.line(f" {message.name}"))
    if message.error:
        heading.append_text(render.line(f"  ✗ {message.error}", "bold red"))
    made = [heading]
    if message.content:
        made.append(_indented(message.content, full))
    for call in message.tool_calls:
        made.append(_indented(f"→ {call.name}({call.arguments})", full, "cyan"))
    return made


def _indented(content: str, full: bool, style: str = "") -> Text:
    lines = render.clean(content).split("\n")
    width = max(render.console().width - 4, 20)
    folded: list[str] = []
    for item in lines:
        folded += [item[at : at + width] for at in range(0, len(item), width)] or [""]
        if not full and len(folded) > _FOLDED_LINES:
            break
    if not full and len(folded) > _FOLDED_LINES:
        folded = [*folded[:_FOLDED_LINES], f"… ({len(content)} characters; --full shows all)"]
    return Text("\n".join("  " + item for item in folded), style=style)


def _tree(node: SpanNode, full: bool) -> Tree:
    tree = Tree(_label(node))
    waiting = [(tree, node)]
    while waiting:
        branch, above = waiting.pop()
        # What the heading and the conversation say already, or another command shows better, is for --full.
        for event in (event for event in above.events if full or event.name not in _TOLD_ELSEWHERE):
            branch.add(_event(event.name, event.attributes, event.body, full))
        for child in above.children:
            waiting.append((branch.add(_label(child)), child))
    return tree


def _label(node: SpanNode) -> Text:
    failed = node.status == "error"
    made = render.line(("✗ " if failed else "") + node.name, "bold red" if failed else "bold")
    made.append_text(render.line(f"  {render.seconds(node.duration_s)}", "dim"))
    attributes = node.attributes
    for name, shown in (
        (semconv.INPUT_TOKENS, "in"),
        (semconv.OUTPUT_TOKENS, "out"),
        (semconv.REWARD, "reward"),
        (semconv.TOOL_REWARD, "reward"),
        (semconv.RESPONSE_FINISH_REASONS, "finish"),
        (semconv.RL_BUCKET, ""),
    ):
        value = attributes.get(name)
        if value is not None:
            told = render.number(value) if isinstance(value, (int, float)) else _short(value)
            made.append_text(render.line(f"  {shown} {told}" if shown else f"  {told}"))
    if failed:
        kind, reason = str(attributes.get(semconv.ERROR_TYPE) or ""), node.status_message
        if not reason.startswith(kind):
            reason = f"{kind} {reason}".strip()
        made.append_text(render.line(f"  {reason or 'error'}", "red"))
    return made


def _short(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _event(name: str, attributes: Mapping[str, Any], body: Any, full: bool) -> Text:
    facts = {**attributes, **body} if isinstance(body, dict) else dict(attributes)
    facts.pop(semconv.EVENT_ID, None)
    shown = "  ".join(f"{key}={_short(value)}" for key, value in facts.items())
    if not full and len(shown) > 160:
        shown = shown[:160] + " …"
    return render.line(f"· {name}  {shown}", "dim")
