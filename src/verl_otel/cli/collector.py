"""``verl-otel collector``: the collector as a service."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from importlib import resources
from pathlib import Path

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
    parser.add_argument(
        "--home",
        type=Path,
        default=os.environ.get("VERL_OTEL_HOME") or "./verl-otel-data",
        metavar="DIR",
        help="where everything is kept (VERL_OTEL_HOME; default ./verl-otel-data)",
    )


def run(args: argparse.Namespace) -> int:
    from verl_otel.collector.config import ConfigErrors, load, load_default
    from verl_otel.collector.service import CannotListen, Collector
    from verl_otel.collector.spool import SpoolLocked

    if args.print_config:
        print(resources.files("verl_otel.collector.config").joinpath("default.yaml").read_text(), end="")
        return 0
    file = args.config.absolute() if args.config else None
    try:
        config = load(file) if file else load_default()
    except ConfigErrors as error:
        for line in error.lines:
            print(f"verl-otel collector: {line}", file=sys.stderr)
        return 2
    if args.check:
        print(f"{file or 'default configuration'}: fine; sinks: {', '.join(config.exporters)}")
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    home = Path(args.home).absolute()
    # Workers, and what they start, find their files by it.
    os.environ["VERL_OTEL_HOME"] = str(home)

    async def serve() -> int:
        return await Collector(home, config, file).run()

    try:
        return asyncio.run(serve())
    except (CannotListen, SpoolLocked) as error:
        print(f"verl-otel collector: {error}", file=sys.stderr)
        return 2
    except PermissionError as error:
        print(f"verl-otel collector: cannot write to {home}: {error}", file=sys.stderr)
        return 2
