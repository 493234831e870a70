"""``verl-otel collector``: the collector as a service."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from verl_otel.cli.options import add_home

_EPILOG = """examples:
  verl-otel collector                                  the default configuration
  verl-otel collector --print-config > collector.yaml  a copy to change
  verl-otel collector --config collector.yaml --check  what is wrong with it
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "collector",
        help="take OTLP in, keep it, feed the sinks",
        description="Takes OTLP in over gRPC and HTTP, keeps it on disk, and feeds every sink from there.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML in the OpenTelemetry Collector's shape")
    parser.add_argument("--check", action="store_true", help="say what is wrong with the configuration, and stop")
    parser.add_argument("--print-config", action="store_true", help="print the default configuration, and stop")
    add_home(parser)


def run(args: argparse.Namespace) -> int:
    # gRPC's C core writes to standard error by itself what it has raised as well.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from verl_otel.collector import logs
    from verl_otel.collector.config import ConfigErrors, default_text, load, load_default
    from verl_otel.collector.service import CannotListen, Collector
    from verl_otel.collector.spool import SpoolLocked

    if args.print_config:
        print(default_text(), end="")
        return 0
    try:
        config = load(args.config) if args.config else load_default()
    except ConfigErrors as error:
        for line in error.lines:
            print(f"verl-otel collector: {line}", file=sys.stderr)
        return 2
    if args.check:
        print(f"{args.config or 'default configuration'}: fine; sinks: {', '.join(config.exporters)}")
        return 0
    logs.set_up(config.log_level)
    home = Path(args.home).absolute()
    # Workers, and what they start, find their files by it.
    os.environ["VERL_OTEL_HOME"] = str(home)

    async def serve() -> int:
        return await Collector(home, config).run()

    try:
        return asyncio.run(serve())
    except (CannotListen, SpoolLocked) as error:
        print(f"verl-otel collector: {error}", file=sys.stderr)
    except OSError as error:
        print(f"verl-otel collector: cannot work in {home}: {error}", file=sys.stderr)
    return 2
