"""The collector process: receivers, the spool, a worker per sink, health and metrics, and a stop that drains."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web

from verl_otel.collector import status
from verl_otel.collector.config import Config, only
from verl_otel.collector.pipeline.supervisor import WorkerProcess
from verl_otel.collector.receivers import grpc as grpc_receiver
from verl_otel.collector.receivers import http as http_receiver
from verl_otel.collector.receivers.intake import Intake
from verl_otel.collector.spool import Cursor, SpoolWriter

logger = logging.getLogger(__name__)

PUBLISHED = "collector.json"
_CLEAN_S = 1.0
# How long a stop waits for requests that are being taken
_IN_FLIGHT_S = 5.0


class CannotListen(OSError):
    """An address is taken or not ours."""


class Collector:
    """One collector over ``home``; ``run`` returns when it was told to stop and the sinks are drained."""

    def __init__(self, home: Path, config: Config) -> None:
        """Raises ``SpoolLocked`` when another collector has this home."""
        self._home = home
        self._config = config
        self._spool = SpoolWriter(home / "spool", config.spool.max_bytes, config.spool.segment_bytes)
        self._intake = Intake(self._spool, config.signals)
        self._workers = [WorkerProcess(name, home, only(config, name)) for name in config.exporters]
        self._endpoints: dict[str, str | None] = {"grpc": None, "http": None, "health": None}
        self._started_at = time.time()
        self._grpc: grpc.aio.Server | None = None
        self._http: web.AppRunner | None = None
        self._health: web.AppRunner | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; 0 when everything reached the sinks, 1 when some is left in the spool.

        Raises:
            CannotListen: an address is taken or not ours.
        """
        loop = asyncio.get_running_loop()
        _allow_many_connections()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._listen()
            tasks += [asyncio.create_task(worker.keep_running()) for worker in self._workers]
            cleaner = asyncio.create_task(self._clean())
            self._publish()
            await self._stopping.wait()
            cleaner.cancel()
            return await self._finish(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *(worker.kill() for worker in self._workers), return_exceptions=True)
            for runner in (self._http, self._health):
                if runner is not None:
                    await runner.cleanup()
            self._spool.close()
            (self._home / PUBLISHED).unlink(missing_ok=True)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def _listen(self) -> None:
        # The doors open last to first in importance: whoever finds OTLP answering finds health answering too.
        if self._config.health_endpoint:
            app = web.Application()
            app.router.add_get("/", self._answer_health)
            app.router.add_get("/metrics", self._answer_metrics)
            self._health = web.AppRunner(app, access_log=None, shutdown_timeout=1)
            self._endpoints["health"] = await self._serve(self._health, self._config.health_endpoint)
        if self._config.http:
            self._http = http_receiver.runner(self._intake, self._config.http.max_bytes)
            self._endpoints["http"] = await self._serve(self._http, self._config.http.endpoint)
        if self._config.grpc:
            endpoint = self._config.grpc.endpoint
            self._grpc = grpc_receiver.server(self._intake, self._config.grpc.max_bytes)
            try:
                port = self._grpc.add_insecure_port(endpoint)
            except RuntimeError:
                port = 0
            if port == 0:
                raise CannotListen(f"{endpoint}: the address is taken or not of this machine")
            await self._grpc.start()
            self._endpoints["grpc"] = f"{endpoint.rpartition(':')[0]}:{port}"

    async def _serve(self, runner: web.AppRunner, endpoint: str) -> str:
        host, _, port = endpoint.rpartition(":")
        await runner.setup()
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            # Errors of looking up a name have negative numbers, and a text of their own.
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or error
            raise CannotListen(f"{endpoint}: {reason}") from None
        return f"http://{host}:{runner.addresses[0][1]}"

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
            try:
                self._spool.drop_before(min(cursor.position for cursor in self._cursors()))
            except OSError as error:
                logger.error("spool: cannot delete what every sink has: %s", error)

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

    async def _answer_health(self, request: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _answer_metrics(self, request: web.Request) -> web.Response:
        text = status.openmetrics(self.status())
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return web.Response(body=text.encode(), headers={"Content-Type": kind})

    async def _finish(self, tasks: Sequence[asyncio.Task[None]]) -> int:
        """Drain within the time that the configuration gives, or until a second signal."""
        draining = asyncio.create_task(self._drain(tasks))
        hurry = asyncio.create_task(self._hurry.wait())
        waited: list[asyncio.Task[Any]] = [draining, hurry]
        timeout = self._config.spool.shutdown_timeout
        await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if draining.done():
            draining.result()
            return 0
        draining.cancel()
        left = {cursor.sink: self._spool.bytes_after(cursor.position) for cursor in self._cursors()}
        text = ", ".join(f"{sink} {size} bytes" for sink, size in left.items() if size)
        what = f"with data in the spool ({text})" if text else "before its sinks had ended"
        print(f"verl-otel collector: stopped {what}; the next start goes on", file=sys.stderr)
        return 1

    async def _drain(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Stop taking, finish the requests in flight, then let the sinks have all of it."""
        if self._grpc is not None:
            await self._grpc.stop(_IN_FLIGHT_S)
        if self._http is not None:
            await self._http.cleanup()
        for worker in self._workers:
            await worker.drain()
        await asyncio.gather(*tasks)


def _allow_many_connections() -> None:
    """Every process of a training run keeps a connection open; the usual soft limit of files is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logger.info("the limit of open files stays as it is: %s", error)
