"""Forwards OTLP requests over HTTP, with the official ``otlp_http`` exporter's keys."""

from __future__ import annotations

import difflib
import gzip
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from verl_otel.collector.records import Batch, Position
from verl_otel.collector.sinks.base import ConfigError, Reject, Retry, SinkContext

_KEYS = ("endpoint", "traces_endpoint", "metrics_endpoint", "logs_endpoint", "headers", "compression", "timeout")
# Answers after which OTLP says that the same request may be sent again
_RETRYABLE = frozenset({408, 429, 502, 503, 504})


class OtlpSink:
    """Sends each request once per delivery; order is kept."""

    wants = frozenset({"raw"})

    @classmethod
    def check(cls, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        for key in config:
            if key not in _KEYS:
                close = difflib.get_close_matches(str(key), _KEYS, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_KEYS)}"
                raise ConfigError(f"{path}.{key}", f"unknown key; {hint}")
        endpoints = {}
        base = str(config.get("endpoint", "")).rstrip("/")
        for signal in ("traces", "metrics", "logs"):
            own = config.get(f"{signal}_endpoint") or (f"{base}/v1/{signal}" if base else "")
            endpoints[signal] = str(own)
            if own and urlsplit(str(own)).scheme not in ("http", "https"):
                raise ConfigError(f"{path}.endpoint", f"{own!r} is no URL; write it as http://host:4318")
        if not any(endpoints.values()):
            raise ConfigError(
                f"{path}.endpoint", "is missing; give the URL of an OTLP/HTTP endpoint, as http://host:4318"
            )
        compression = str(config.get("compression", "gzip"))
        if compression not in ("gzip", "none"):
            raise ConfigError(f"{path}.compression", f"{compression!r} is not known; use gzip or none")
        headers = config.get("headers") or {}
        if not isinstance(headers, Mapping):
            raise ConfigError(f"{path}.headers", "must be a mapping of names to values")
        timeout = str(config.get("timeout", "30s")).removesuffix("s")
        if not timeout.replace(".", "", 1).isdigit():
            raise ConfigError(f"{path}.timeout", "is no duration in seconds; write it as 30s")
        return {
            "endpoints": endpoints,
            "headers": {str(key): str(value) for key, value in headers.items()},
            "compression": compression,
            "timeout": float(timeout),
        }

    def __init__(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self._endpoints: dict[str, str] = config["endpoints"]
        self._gzip = config["compression"] == "gzip"
        self._timeout = config["timeout"]
        self._headers = {"Content-Type": "application/x-protobuf", **config["headers"]}
        if self._gzip:
            self._headers["Content-Encoding"] = "gzip"
        self._counters = context.counters
        self._sent = 0
        self._sending: Position | None = None

    def start(self) -> Position | None:
        return None

    def deliver(self, batch: Batch) -> None:
        # A batch is many requests; when one fails, those before it need not go out again.
        if self._sending != batch.start:
            self._sending, self._sent = batch.start, 0
        refused, reason = 0, ""
        for signal, data in batch.raw[self._sent :]:
            try:
                self._post(signal, data)
            except Reject as error:
                refused, reason = refused + error.count, str(error)
            self._sent += 1
        if refused:
            raise Reject(reason, refused)

    def _post(self, signal: str, data: bytes) -> None:
        url = self._endpoints[signal]
        if not url:
            return
        body = gzip.compress(data, 1) if self._gzip else data
        request = urllib.request.Request(url, body, self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                response.read()
        except urllib.error.HTTPError as error:
            text = f"{url} answered {error.code} {error.reason}"
            if error.code in _RETRYABLE:
                after = error.headers.get("Retry-After", "")
                raise Retry(text, float(after) if after.isdigit() else None) from None
            self._counters.add("refused_requests")
            raise Reject(text) from None
        except (OSError, http.client.HTTPException) as error:
            raise Retry(f"{url}: {getattr(error, 'reason', error)}") from None

    def tick(self) -> None:
        pass

    def committed(self) -> Position | None:
        return None

    def close(self, drain: bool) -> None:
        pass
