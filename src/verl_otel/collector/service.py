"""The collector process: receivers, the spool, a worker per sink, health and metrics, and a stop that drains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web

from verl_otel.collector import status
from verl_otel.collector.config import Config
from verl_otel.collector.pipeline.supervisor import WorkerProcess
from verl_otel.collector.receivers import grpc as grpc_receiver
from verl_otel.collector.receivers import http as http_receiver
from verl_otel.collector.receivers.intake import Intake
from verl_otel.collector.spool import Cursor, SpoolWriter

logger = logging.getLogger(__name__)

PUBLISHED = "collector.json"
_CLEAN_S = 5.0


class CannotListen(OSError):
    """An address is taken or not ours."""


class Collector:
    """One collector over ``home``; ``run`` returns when it was told to stop and the sinks are drained."""

    def __init__(self, home: Path, config: Config, config_file: Path | None) -> None:
        self._home = home
        self._config = config
        self._spool = SpoolWriter(home / "spool", config.spool_max_bytes)
        self._intake = Intake(self._spool)
        self._workers = [WorkerProcess(name, home, config_file) for name in config.exporters]
        self._endpoints: dict[str, str | None] = {"grpc": None, "http": None, "health": None}
        self._started_at = time.time()
        self._runners: list[web.AppRunner] = []
        self._grpc: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; 0 when everything reached the sinks, 1 when some is left in the spool."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            await self._listen()
            tasks = [asyncio.create_task(worker.keep_running()) for worker in self._workers]
            cleaner = asyncio.create_task(self._clean())
            self._publish()
            await self._stopping.wait()
            cleaner.cancel()
            return await self._drain(tasks)
        finally:
            for worker in self._workers:
                worker.kill()
            for runner in self._runners:
                await runner.cleanup()
            self._spool.close()
            (self._home / PUBLISHED).unlink(missing_ok=True)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def _listen(self) -> None:
        limit = self._config.max_request_bytes
        if self._config.http_endpoint:
            app = http_receiver.application(self._intake, limit)
            self._endpoints["http"] = "http://" + await self._serve(app, self._config.http_endpoint)
        if self._config.grpc_endpoint:
            self._grpc = grpc_receiver.server(self._intake, limit)
            try:
                port = self._grpc.add_insecure_port(self._config.grpc_endpoint)
            except RuntimeError as error:
                raise CannotListen(f"{self._config.grpc_endpoint}: {error}") from None
            if port == 0:
                raise CannotListen(f"{self._config.grpc_endpoint}: the address is taken or not of this machine")
            await self._grpc.start()
            self._endpoints["grpc"] = f"{self._config.grpc_endpoint.rpartition(':')[0]}:{port}"
        if self._config.health_endpoint:
            app = web.Application()
            app.router.add_get("/", self._health)
            app.router.add_get("/metrics", self._metrics)
            self._endpoints["health"] = "http://" + await self._serve(app, self._config.health_endpoint)

    async def _serve(self, app: web.Application, endpoint: str) -> str:
        host, _, port = endpoint.rpartition(":")
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise CannotListen(f"{endpoint}: {error.strerror or error}") from None
        return f"{host}:{runner.addresses[0][1]}"

    def _publish(self) -> None:
        content = {"pid": os.getpid(), "endpoints": self._endpoints, "started_at": self._started_at}
        temporary = self._home / f".{PUBLISHED}"
        temporary.write_text(json.dumps(content))
        temporary.replace(self._home / PUBLISHED)
        doors = ", ".join(f"{name} {address}" for name, address in self._endpoints.items() if address)
        print(f"verl-otel collector: {doors}; home {self._home}", file=sys.stderr, flush=True)

    async def _clean(self) -> None:
        """Delete segments that every sink is past."""
        while True:
            await asyncio.sleep(_CLEAN_S)
            self._spool.drop_before(min(cursor.position for cursor in self._cursors()))

    def _cursors(self) -> Sequence[Cursor]:
        return [Cursor.load(self._home / "spool", name) for name in self._config.exporters]

    def status(self) -> dict[str, Any]:
        """The health document."""
        return status.document(
            self._home,
            self._endpoints,
            self._started_at,
            self._intake,
            self._spool,
            self._cursors(),
            {worker.sink: worker.restarts for worker in self._workers},
            self._stopping.is_set(),
        )

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _metrics(self, request: web.Request) -> web.Response:
        text = status.openmetrics(self.status())
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return web.Response(body=text.encode(), headers={"Content-Type": kind})

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> int:
        """Stop taking, then let the sinks finish within the time that the configuration gives."""
        if self._grpc is not None:
            await self._grpc.stop(5)
        for runner in self._runners[: 1 if self._config.http_endpoint else 0]:
            await runner.cleanup()
        for worker in self._workers:
            await worker.drain()
        finished = asyncio.ensure_future(asyncio.gather(*tasks, return_exceptions=True))
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        waited: list[asyncio.Future[Any]] = [finished, hurry]
        await asyncio.wait(waited, timeout=self._config.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if finished.done():
            return 0
        finished.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await finished
        left = {cursor.sink: status.pending(cursor, self._spool) for cursor in self._cursors()}
        text = ", ".join(f"{sink} {size} bytes" for sink, size in left.items() if size)
        what = f"with data in the spool ({text})" if text else "before its sinks had ended"
        print(f"verl-otel collector: stopped {what}; the next start goes on", file=sys.stderr)
        return 1
