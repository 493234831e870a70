"""From YAML to a checked ``Config``: everything wrong in a file is said at once, with its path."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from verl_otel.collector import processors
from verl_otel.collector.config import source
from verl_otel.collector.config.keys import Problems
from verl_otel.collector.config.model import Config, Exporter, Listener, Pipeline, Retry, Spool
from verl_otel.collector.sinks import base, registry
from verl_otel.collector.spool.writer import MAX_BYTES, SEGMENT_BYTES

_TOP = ("receivers", "processors", "exporters", "extensions", "service")
_SIGNALS = ("traces", "metrics", "logs")
_RETRY = ("enabled", "initial_interval", "max_interval", "max_elapsed_time")
_SPOOL = ("max_size", "segment_size", "shutdown_timeout")
LOG_LEVELS = ("debug", "info", "warn", "error")
_MAX_REQUEST = 64 << 20


class ConfigErrors(ValueError):
    """All that is wrong in a config; ``lines`` has one line for each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def default_text() -> str:
    """The YAML of the configuration used when none is given."""
    return resources.files("verl_otel.collector.config").joinpath("default.yaml").read_text()


def load_default() -> Config:
    """The configuration used when none is given: archive, and MLflow where it is installed."""
    problems = Problems()
    node = source.parse(default_text(), "default.yaml", problems)
    if importlib.util.find_spec("mlflow") is None:
        del node["exporters"]["mlflow"]
        for pipeline in node["service"]["pipelines"].values():
            pipeline["exporters"] = [name for name in pipeline["exporters"] if name != "mlflow"]
    return _check(source.with_env(node, "", problems), problems)


def load(file: Path) -> Config:
    """Read and check a file; raises ``ConfigErrors``."""
    problems = Problems()
    node = source.read(file, problems)
    if problems.lines:
        raise ConfigErrors(problems.lines)
    return _check(source.with_env(node, "", problems), problems)


def check(node: Any) -> Config:
    """Check a parsed file whose environment is filled in; raises ``ConfigErrors``."""
    return _check(node, Problems())


def only(config: Config, exporter: str) -> dict[str, Any]:
    """The part of ``config.source`` that one exporter's process needs, so that it loads no other sink's packages."""
    node = config.source
    pipelines = {
        name: {**pipeline, "exporters": [exporter]}
        for name, pipeline in node["service"]["pipelines"].items()
        if exporter in pipeline["exporters"]
    }
    return {
        **node,
        "exporters": {exporter: node["exporters"][exporter]},
        "service": {**node["service"], "pipelines": pipelines},
    }


def _check(node: Any, problems: Problems) -> Config:
    top = problems.mapping(node, "", _TOP)
    grpc, http = _receivers(top.get("receivers"), problems)
    service = problems.mapping(top.get("service"), "service", ("extensions", "pipelines", "telemetry"))
    extensions = problems.mapping(top.get("extensions"), "extensions", ("health_check", "spool"))
    if enabled := service.get("extensions"):
        enabled = problems.names(enabled, "service.extensions", extensions, "extensions")
    for name in sorted(set(extensions) - set(enabled or ())):
        problems.add(f"extensions.{name}", "is not enabled; name it in service.extensions, or remove it")
    health = _health(extensions, problems)
    spool = _spool(extensions.get("spool"), problems)
    log_level = _telemetry(service.get("telemetry"), problems)
    exporters = _exporters(top.get("exporters"), problems)
    made = _processors(top.get("processors"), problems)
    pipelines = _pipelines(service.get("pipelines"), top, problems)
    for pipeline in pipelines:
        for exporter in pipeline.exporters:
            if pipeline.processors and exporter in exporters and _takes_raw(exporters[exporter]):
                problems.add(
                    f"service.pipelines.{pipeline.name}.processors",
                    f"cannot stand before {exporter}, which sends requests as they came; "
                    f"give {exporter} a pipeline of its own without processors",
                )
    used = {name for pipeline in pipelines for name in pipeline.exporters}
    for name in (name for name in exporters if name not in used):
        problems.add(f"exporters.{name}", "is in no pipeline; name it in service.pipelines, or remove it")
    if problems.lines:
        raise ConfigErrors(problems.lines)
    return Config(
        grpc=grpc,
        http=http,
        health_endpoint=health,
        spool=spool,
        log_level=log_level,
        exporters=exporters,
        processors=made,
        pipelines=pipelines,
        source=node,
    )


def _receivers(node: Any, problems: Problems) -> tuple[Listener | None, Listener | None]:
    if not isinstance(node, Mapping) or len(node) != 1:
        problems.add("receivers", "configure one receiver, otlp")
        return None, None
    ((name, given),) = node.items()
    if str(name).partition("/")[0] != "otlp":
        problems.unknown(f"receivers.{name}", str(name), ("otlp",))
        return None, None
    otlp = problems.mapping(given, f"receivers.{name}", ("protocols",))
    path = f"receivers.{name}.protocols"
    protocols = problems.mapping(otlp.get("protocols"), path, ("grpc", "http"))
    if not protocols:
        problems.add(path, "name at least one of grpc and http")

    def listener(protocol: str, port: int, limit_key: str, unit: str) -> Listener | None:
        if protocol not in protocols:
            return None
        where = f"{path}.{protocol}"
        keys = problems.mapping(protocols[protocol], where, ("endpoint", "insecure_listen", limit_key))
        limit = keys.get(limit_key)
        size = None if limit is None else f"{limit}{unit}"
        return Listener(
            _endpoint(keys, where, port, problems), problems.size(size, f"{where}.{limit_key}", _MAX_REQUEST)
        )

    return listener("grpc", 4317, "max_recv_msg_size_mib", "MiB"), listener("http", 4318, "max_request_body_size", "")


def _endpoint(keys: Mapping[str, Any], path: str, port: int, problems: Problems) -> str:
    insecure = problems.flag(keys.get("insecure_listen"), f"{path}.insecure_listen")
    return problems.endpoint(keys.get("endpoint", f"127.0.0.1:{port}"), f"{path}.endpoint", insecure)


def _health(extensions: Mapping[str, Any], problems: Problems) -> str | None:
    if "health_check" not in extensions:
        return None
    path = "extensions.health_check"
    keys = problems.mapping(extensions["health_check"], path, ("endpoint", "insecure_listen"))
    return _endpoint(keys, path, 13133, problems)


def _spool(node: Any, problems: Problems) -> Spool:
    path = "extensions.spool"
    keys = problems.mapping(node, path, _SPOOL)
    return Spool(
        max_bytes=problems.size(keys.get("max_size"), f"{path}.max_size", MAX_BYTES),
        segment_bytes=problems.size(keys.get("segment_size"), f"{path}.segment_size", SEGMENT_BYTES),
        shutdown_timeout=problems.duration(keys.get("shutdown_timeout"), f"{path}.shutdown_timeout", 60),
    )


def _telemetry(node: Any, problems: Problems) -> str:
    path = "service.telemetry"
    keys = problems.mapping(node, path, ("logs",))
    logs = problems.mapping(keys.get("logs"), f"{path}.logs", ("level",))
    return problems.choice(logs.get("level"), f"{path}.logs.level", LOG_LEVELS, "warn")


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


def _takes_raw(exporter: Exporter) -> bool:
    return "raw" in registry.load(exporter.type).wants


def _retry(node: Any, path: str, problems: Problems) -> Retry:
    keys = problems.mapping(node, path, _RETRY)
    if not problems.flag(keys.get("enabled"), f"{path}.enabled", True):
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
    if node is not None and not isinstance(node, Mapping):
        problems.add("processors", f"must be a mapping, not {type(node).__name__}")
        return found
    for name, given in (node or {}).items():
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

        def names(what: str, path: str = path, keys: Mapping[str, Any] = keys) -> list[str]:
            known = top.get(what)
            return problems.names(keys.get(what), f"{path}.{what}", known if isinstance(known, Mapping) else (), what)

        exporters = names("exporters")
        for exporter in exporters:
            other = taken.setdefault((signal, exporter), str(name))
            if other != name:
                problems.add(f"{path}.exporters", f"{exporter} gets {signal} from pipeline {other} already")
        between = names("processors") if keys.get("processors") else []
        found.append(Pipeline(str(name), signal, names("receivers"), between, exporters))
    return found
