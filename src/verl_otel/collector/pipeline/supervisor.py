"""Starts the workers, starts again those that die, and asks them to drain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_STABLE_S = 60.0


class WorkerProcess:
    """One sink's process; ``config`` is the part of the collector's configuration that it needs."""

    def __init__(self, sink: str, home: Path, config: Mapping[str, Any]) -> None:
        self.sink = sink
        self.restarts = 0
        # As text on its standard input: a file may have changed when the process starts again, and its arguments and
        # environment can be read by others on the machine.
        order = {"sink": sink, "home": str(home), "config": yaml.safe_dump(dict(config)), "parent": os.getpid()}
        self._order = json.dumps(order)
        self._process: asyncio.subprocess.Process | None = None
        self._draining = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def keep_running(self) -> None:
        """Run the process, again and again, until it was asked to drain and did."""
        pause = 0.0
        while True:
            started = time.monotonic()
            try:
                code = await self._run()
            except OSError as error:
                code = f"no start: {error}"
            if code == 0 and self._draining.is_set():
                return
            self.restarts += 1
            lived = time.monotonic() - started
            pause = _FIRST_PAUSE_S if lived > _STABLE_S or not pause else min(pause * 2, _LONGEST_PAUSE_S)
            logger.error("%s: its process ended (%s); starting it again in %.0fs", self.sink, code, pause)
            await self._rest(pause)

    async def _rest(self, pause: float) -> None:
        if self._draining.is_set():
            await asyncio.sleep(min(pause, _FIRST_PAUSE_S))
            return
        # A stop has less time than the longest pause, and what is left could still be delivered.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._draining.wait(), pause)

    async def _run(self) -> int | str:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "verl_otel.collector.pipeline.worker",
            stdin=asyncio.subprocess.PIPE,
            # A terminal's Ctrl-C goes to a whole group; the collector says in its own time what to do.
            start_new_session=True,
        )
        await self._say(self._order)
        if self._draining.is_set():
            await self._say("drain")
        return await self._process.wait()

    async def drain(self) -> None:
        """Ask the process to finish what is in the spool and end."""
        self._draining.set()
        await self._say("drain")

    async def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()
            except OSError:
                logger.debug("%s: its process is gone", self.sink)

    async def kill(self) -> None:
        """End the process at once; what it had not committed comes again next time."""
        process = self._process
        if process is not None and process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:
                return
            await process.wait()
