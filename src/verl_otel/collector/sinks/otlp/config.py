"""The keys of the sinks ``otlp``, ``otlp_http`` and ``otlp_grpc``: those of the official exporters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_otel.collector.config.keys import Problems

_COMMON = ("endpoint", "headers", "compression", "timeout", "tls")
_SIGNALS = ("traces", "metrics", "logs")
_SIGNAL_ENDPOINTS = tuple(f"{signal}_endpoint" for signal in _SIGNALS)
_TIMEOUT_S = 30.0


def is_url(endpoint: Any) -> bool:
    """Whether ``endpoint`` says its protocol itself."""
    return urlsplit(str(endpoint or "")).scheme in ("http", "https")


def check_http(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Keys of OTLP over HTTP, with ``urls`` by signal; raises ``ConfigError``."""
    problems = Problems()
    keys = problems.mapping(config, path, (*_COMMON, *_SIGNAL_ENDPOINTS))
    base = str(keys.get("endpoint") or "").rstrip("/")
    urls = {
        signal: str(keys.get(f"{signal}_endpoint") or (f"{base}/v1/{signal}" if base else "")) for signal in _SIGNALS
    }
    for name in ("endpoint", *_SIGNAL_ENDPOINTS):
        if keys.get(name) and not is_url(keys[name]):
            problems.add(f"{path}.{name}", f"{keys[name]!r} is no URL; write it as http://host:4318")
    if not any(urls.values()):
        problems.add(f"{path}.endpoint", "is missing; give the URL of an OTLP/HTTP endpoint, as http://host:4318")
    return {"protocol": "http", "urls": urls, **_common(keys, path, problems)}


def check_grpc(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Keys of OTLP over gRPC, with ``target`` for its channel; raises ``ConfigError``."""
    problems = Problems()
    keys = problems.mapping(config, path, _COMMON)
    endpoint = str(keys.get("endpoint") or "")
    scheme, target = (urlsplit(endpoint).scheme, urlsplit(endpoint).netloc) if is_url(endpoint) else ("", endpoint)
    host, _, port = target.rpartition(":")
    if not host or not port.isdigit():
        problems.add(f"{path}.endpoint", f"{endpoint!r} is no address; write it as host:4317")
    common = _common(keys, path, problems)
    if scheme:
        # A scheme decides, as in the official exporter.
        common["insecure"] = scheme == "http"
    return {"protocol": "grpc", "target": target, **common}


def _common(keys: Mapping[str, Any], path: str, problems: Problems) -> dict[str, Any]:
    headers = keys.get("headers") or {}
    if not isinstance(headers, Mapping):
        problems.add(f"{path}.headers", "must be a mapping of names to values")
        headers = {}
    tls = problems.mapping(keys.get("tls"), f"{path}.tls", ("insecure", "ca_file"))
    ca_file = tls.get("ca_file")
    if ca_file and not Path(str(ca_file)).is_file():
        problems.add(f"{path}.tls.ca_file", f"there is no file {ca_file}")
    checked = {
        "headers": {str(key): str(value) for key, value in headers.items()},
        "gzip": problems.choice(keys.get("compression"), f"{path}.compression", ("gzip", "none"), "gzip") == "gzip",
        "timeout": problems.duration(keys.get("timeout"), f"{path}.timeout", _TIMEOUT_S),
        "insecure": problems.flag(tls.get("insecure"), f"{path}.tls.insecure"),
        "ca_file": str(ca_file) if ca_file else None,
    }
    problems.raise_first()
    return checked
