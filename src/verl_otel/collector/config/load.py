"""From YAML text to a checked ``Config``: everything wrong in a file is said at once, with its path."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from verl_otel.collector import processors
from verl_otel.collector.config.keys import Problems
from verl_otel.collector.config.model import Config, Exporter, Pipeline, Retry
from verl_otel.collector.sinks import base, registry
from verl_otel.collector.spool.writer import MAX_BYTES

_ENV = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TOP = ("receivers", "processors", "exporters", "extensions", "service")
_SIGNALS = ("traces", "metrics", "logs")
_COMMON = ("retry_on_failure",)
_RETRY = ("enabled", "initial_interval", "max_interval", "max_elapsed_time")


class ConfigErrors(ValueError):
    """All that is wrong in a config; ``lines`` has one line for each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def load_default() -> Config:
    """The configuration used when none is given: archive, and MLflow where it is installed."""
    text = resources.files("verl_otel.collector.config").joinpath("default.yaml").read_text()
    node = yaml.safe_load(text)
    if importlib.util.find_spec("mlflow") is None:
        del node["exporters"]["mlflow"]
        for pipeline in node["service"]["pipelines"].values():
            pipeline["exporters"] = [name for name in pipeline["exporters"] if name != "mlflow"]
    return check(node)


def load(path: Path) -> Config:
    """Read and check a file; raises ``ConfigErrors``."""
    try:
        node = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigErrors([f"{path}: cannot be read: {error.strerror}"]) from None
    except yaml.YAMLError as error:
        raise ConfigErrors([f"{path}: not YAML: {' '.join(str(error).split())}"]) from None
    return check(node)


def check(node: Any) -> Config:
    """Check a parsed file; raises ``ConfigErrors``."""
    problems = Problems()
    node = _with_env(node, "", problems)
    top = problems.mapping(node, "", _TOP)
    grpc, http, max_request = _receivers(top.get("receivers"), problems)
    service = problems.mapping(top.get("service"), "service", ("extensions", "pipelines"))
    extensions = problems.mapping(top.get("extensions"), "extensions", ("health_check", "spool"))
    enabled = problems.names(service.get("extensions") or [], "service.extensions", extensions, "extensions")
    for name in sorted(set(extensions) - set(enabled)):
        problems.add(f"extensions.{name}", "is not enabled; name it in service.extensions, or remove it")
    health = _health(extensions, problems)
    spool = problems.mapping(extensions.get("spool"), "extensions.spool", ("max_size", "shutdown_timeout"))
    exporters = _exporters(top.get("exporters"), problems)
    made = _processors(top.get("processors"), problems)
    pipelines = _pipelines(service.get("pipelines"), top, problems)
    spool_max = problems.size(spool.get("max_size"), "extensions.spool.max_size", MAX_BYTES)
    stop_within = problems.duration(spool.get("shutdown_timeout"), "extensions.spool.shutdown_timeout", 60)
    unused = set(exporters) - {name for pipeline in pipelines for name in pipeline.exporters}
    for name in sorted(unused):
        problems.add(f"exporters.{name}", "is in no pipeline; name it in service.pipelines, or remove it")
    if problems.lines:
        raise ConfigErrors(problems.lines)
    return Config(
        grpc_endpoint=grpc,
        http_endpoint=http,
        health_endpoint=health,
        max_request_bytes=max_request,
        spool_max_bytes=spool_max,
        shutdown_timeout=stop_within,
        exporters=exporters,
        processors=made,
        pipelines=pipelines,
    )


def _receivers(node: Any, problems: Problems) -> tuple[str | None, str | None, int]:
    receivers = problems.mapping(node, "receivers", ("otlp",))
    otlp = problems.mapping(receivers.get("otlp"), "receivers.otlp", ("protocols",))
    path = "receivers.otlp.protocols"
    protocols = problems.mapping(otlp.get("protocols"), path, ("grpc", "http"))
    if not protocols:
        problems.add(path, "name at least one of grpc and http")
    found: dict[str, str] = {}
    limits = {"grpc": "max_recv_msg_size_mib", "http": "max_request_body_size"}
    largest = 64 << 20
    for name, port in (("grpc", 4317), ("http", 4318)):
        if name in protocols:
            where = f"{path}.{name}"
            keys = problems.mapping(protocols[name], where, ("endpoint", "insecure_listen", limits[name]))
            insecure = keys.get("insecure_listen") is True
            found[name] = problems.endpoint(keys.get("endpoint", f"127.0.0.1:{port}"), f"{where}.endpoint", insecure)
            limit = keys.get(limits[name])
            if limit is not None:
                text = f"{limit}MiB" if name == "grpc" else limit
                largest = problems.size(text, f"{where}.{limits[name]}", largest)
    return found.get("grpc"), found.get("http"), largest


def _health(extensions: Mapping[str, Any], problems: Problems) -> str | None:
    if "health_check" not in extensions:
        return None
    keys = problems.mapping(extensions.get("health_check"), "extensions.health_check", ("endpoint", "insecure_listen"))
    insecure = keys.get("insecure_listen") is True
    return problems.endpoint(keys.get("endpoint", "127.0.0.1:13133"), "extensions.health_check.endpoint", insecure)


def _exporters(node: Any, problems: Problems) -> dict[str, Exporter]:
    found: dict[str, Exporter] = {}
    if not isinstance(node, Mapping) or not node:
        problems.add("exporters", "configure at least one exporter")
        return found
    for name, given in node.items():
        path = f"exporters.{name}"
        kind = str(name).partition("/")[0]
        if kind not in registry.names():
            problems.unknown(path, kind, registry.names())
            continue
        if given is not None and not isinstance(given, Mapping):
            problems.add(path, f"must be a mapping, not {type(given).__name__}")
            continue
        keys = dict(given or {})
        retry = _retry(keys.pop("retry_on_failure", None), f"{path}.retry_on_failure", problems)
        try:
            config = registry.load(kind).check(keys, path)
        except base.ConfigError as error:
            problems.lines.append(str(error))
            continue
        except ImportError as error:
            problems.add(path, f"needs a package that is not installed: {error}; `pip install 'verl-otel[{kind}]'`")
            continue
        found[str(name)] = Exporter(str(name), kind, config, retry)
    return found


def _retry(node: Any, path: str, problems: Problems) -> Retry:
    keys = problems.mapping(node, path, _RETRY)
    if keys.get("enabled") is False:
        problems.add(
            f"{path}.enabled", "a sink that never tries again loses data; set max_elapsed_time to give up sooner"
        )
    return Retry(
        problems.duration(keys.get("initial_interval"), f"{path}.initial_interval", Retry().initial_interval),
        problems.duration(keys.get("max_interval"), f"{path}.max_interval", Retry().max_interval),
        problems.duration(keys.get("max_elapsed_time"), f"{path}.max_elapsed_time", Retry().max_elapsed_time),
    )


def _processors(node: Any, problems: Problems) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name, given in (node or {}).items() if isinstance(node, Mapping) or node is None else ():
        path = f"processors.{name}"
        kind = str(name).partition("/")[0]
        if kind not in processors.FACTORIES:
            problems.unknown(path, kind, processors.FACTORIES)
            continue
        try:
            processors.FACTORIES[kind](given or {}, path)
            found[str(name)] = given or {}
        except base.ConfigError as error:
            problems.lines.append(str(error))
    return found


def _pipelines(node: Any, top: Mapping[str, Any], problems: Problems) -> list[Pipeline]:
    found: list[Pipeline] = []
    if not isinstance(node, Mapping) or not node:
        problems.add("service.pipelines", "configure at least one pipeline (traces, metrics, logs)")
        return found
    taken: dict[tuple[str, str], str] = {}
    for name, given in node.items():
        path = f"service.pipelines.{name}"
        signal = str(name).partition("/")[0]
        if signal not in _SIGNALS:
            problems.unknown(path, signal, _SIGNALS)
            continue
        keys = problems.mapping(given, path, ("receivers", "processors", "exporters"))
        exporters = problems.names(keys.get("exporters"), f"{path}.exporters", top.get("exporters") or {}, "exporters")
        for exporter in exporters:
            other = taken.setdefault((signal, exporter), str(name))
            if other != name:
                problems.add(f"{path}.exporters", f"{exporter} gets {signal} from pipeline {other} already")
        found.append(
            Pipeline(
                str(name),
                signal,
                problems.names(keys.get("receivers"), f"{path}.receivers", top.get("receivers") or {}, "receivers"),
                problems.names(
                    keys.get("processors") or [], f"{path}.processors", top.get("processors") or {}, "processors"
                ),
                exporters,
            )
        )
    return found


def _with_env(node: Any, path: str, problems: Problems) -> Any:
    if isinstance(node, Mapping):
        return {key: _with_env(value, f"{path}.{key}" if path else str(key), problems) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_env(value, f"{path}[{index}]", problems) for index, value in enumerate(node)]
    if not isinstance(node, str):
        return node

    def replace(match: re.Match[str]) -> str:
        value = os.environ.get(match[1], match[2])
        if value is None:
            problems.add(path, f"the environment has no {match[1]}; set it, or write ${{env:{match[1]}:-default}}")
            return ""
        return value

    return _ENV.sub(replace, node)
