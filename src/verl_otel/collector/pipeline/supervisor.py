"""Starts the workers, starts again those that die, and asks them to drain."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_STABLE_S = 60.0


class WorkerProcess:
    """One sink's process."""

    def __init__(self, sink: str, home: Path, config_file: Path | None) -> None:
        self.sink = sink
        self.restarts = 0
        self._order = json.dumps({"sink": sink, "home": str(home), "config": str(config_file) if config_file else ""})
        self._process: asyncio.subprocess.Process | None = None
        self._draining = False

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def keep_running(self) -> None:
        """Run the process, again and again, until it was asked to drain and did."""
        pause = _FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "verl_otel.collector.pipeline.worker",
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            await self._say(self._order)
            if self._draining:
                await self._say("drain")
            code = await self._process.wait()
            if code == 0 and self._draining:
                return
            self.restarts += 1
            pause = _FIRST_PAUSE_S if time.monotonic() - started > _STABLE_S else min(pause * 2, _LONGEST_PAUSE_S)
            logger.error("%s: its process ended with %s; starting it again in %.0fs", self.sink, code, pause)
            await asyncio.sleep(pause)

    async def drain(self) -> None:
        """Ask the process to finish what is in the spool and end."""
        self._draining = True
        await self._say("drain")

    async def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()
            except (ConnectionError, OSError):
                logger.debug("%s: its process is gone", self.sink)

    def kill(self) -> None:
        """End the process at once; what it had not committed comes again next time."""
        if self.pid is not None and self._process is not None:
            self._process.kill()
