"""``verl-otel``: one module per command; a command's dependencies are imported only when it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from verl_otel import __version__

COMMANDS = {
    "run": "train under telemetry: verl-otel run -- python -m verl.trainer.main_ppo …",
    "collector": "take OTLP in, keep it, feed the sinks",
    "doctor": "what is hooked, reachable, pending, dropped",
    "runs": "the runs in the archive",
    "trajectories": "a run's trajectories, filtered and sorted",
    "show": "one trajectory or step as a tree",
    "metrics": "a run's metrics under verl's own keys",
}
_EXTRAS = "collector"
_EPILOG = """examples:
  verl-otel run -- python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo …
  verl-otel trajectories --step 3 --max-reward 0.2
  verl-otel show 4bf92f
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    try:
        parser = _parser(name)
        args = parser.parse_args(arguments)
        if not getattr(args, "command", None):
            parser.print_help()
            return 2
        code = importlib.import_module(f"verl_otel.cli.{args.command}").run(args)
        return int(code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "verl_otel":
            raise
        print(
            f"verl-otel {name}: needs {missing}, which is not installed: pip install 'verl-otel[{_EXTRAS}]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain about standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="verl-otel",
        description="OpenTelemetry for LLM reinforcement learning with verl.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"verl-otel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command, text in COMMANDS.items():
        if command == name:
            importlib.import_module(f"verl_otel.cli.{command}").add_parser(commands)
        else:
            commands.add_parser(command, help=text, add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
