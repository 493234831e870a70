"""What the collector says of itself: a JSON document for people and tools, and OpenMetrics text for Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_otel import __version__
from verl_otel.collector.receivers.intake import Intake
from verl_otel.collector.spool import Cursor, SpoolWriter

_ITEMS = {"traces": "spans", "metrics": "metric_points", "logs": "log_records"}


def document(
    home: Path,
    endpoints: Mapping[str, str | None],
    started_at: float,
    intake: Intake,
    spool: SpoolWriter,
    cursors: Sequence[Cursor],
    restarts: Mapping[str, int],
    stopping: bool,
) -> dict[str, Any]:
    """The health document. ``status`` is ``ok``, ``degraded`` (a sink fails) or ``stopping``."""
    sinks = {
        cursor.sink: {
            "pending_bytes": spool.bytes_after(cursor.position),
            "delivered": cursor.delivered,
            "retries": cursor.retries,
            "rejected": cursor.rejected,
            "restarts": restarts.get(cursor.sink, 0),
            "failing": cursor.failing,
            "failing_since": cursor.failing_since if cursor.failing else None,
            "last_error": cursor.last_error or None,
            "last_error_at": cursor.last_error_at or None,
            "counters": cursor.counters,
        }
        for cursor in cursors
    }
    failing = any(sink["failing"] for sink in sinks.values())
    return {
        "status": "stopping" if stopping else "degraded" if failing else "ok",
        "version": __version__,
        "pid": os.getpid(),
        "home": str(home),
        "started_at": started_at,
        "uptime_s": round(time.time() - started_at, 3),
        "endpoints": dict(endpoints),
        "accepted": dict(intake.accepted),
        "refused": dict(intake.refused),
        "undecodable": dict(intake.undecodable),
        "spool_bytes": spool.total_bytes(),
        "spool_max_bytes": spool.max_bytes,
        "repaired_bytes": spool.repaired_bytes,
        "sinks": sinks,
    }


def openmetrics(status: Mapping[str, Any]) -> str:
    """The numbers of ``document`` as OpenMetrics text, under the official Collector's names where it has them."""
    lines: list[str] = []

    def family(name: str, kind: str, samples: Sequence[tuple[str, float]]) -> None:
        lines.append(f"# TYPE {name} {kind}")
        suffix = "_total" if kind == "counter" else ""
        lines.extend(f"{name}{suffix}{labels} {value}" for labels, value in samples)

    for what in ("accepted", "refused"):
        for signal, items in _ITEMS.items():
            count = status[what].get(signal, 0)
            family(f"otelcol_receiver_{what}_{items}", "counter", [('{receiver="otlp"}', count)])
    bad = [(f'{{receiver="otlp",signal="{signal}"}}', status["undecodable"].get(signal, 0)) for signal in _ITEMS]
    family("verl_otel_receiver_undecodable_requests", "counter", bad)
    family("verl_otel_spool_bytes", "gauge", [("", status["spool_bytes"])])
    family("verl_otel_spool_repaired_bytes", "gauge", [("", status["repaired_bytes"])])
    family("otelcol_process_uptime_seconds", "counter", [("", status["uptime_s"])])
    sinks = [(f'{{exporter="{_escaped(name)}"}}', sink) for name, sink in status["sinks"].items()]
    for signal, items in _ITEMS.items():
        sent = [(labels, sink["delivered"].get(signal, 0)) for labels, sink in sinks]
        family(f"otelcol_exporter_sent_{items}", "counter", sent)
    # The official queue counts requests, items or bytes, as its `sizer` says; ours is the spool, in bytes.
    family("otelcol_exporter_queue_size", "gauge", [(labels, sink["pending_bytes"]) for labels, sink in sinks])
    family("otelcol_exporter_queue_capacity", "gauge", [(labels, status["spool_max_bytes"]) for labels, _ in sinks])
    for name in ("retries", "rejected", "restarts"):
        family(f"verl_otel_exporter_{name}", "counter", [(labels, sink[name]) for labels, sink in sinks])
    family("verl_otel_exporter_failing", "gauge", [(labels, int(sink["failing"])) for labels, sink in sinks])
    own = [
        (f'{{exporter="{_escaped(name)}",name="{_escaped(counter)}"}}', value)
        for name, sink in status["sinks"].items()
        for counter, value in sink["counters"].items()
    ]
    family("verl_otel_exporter_events", "counter", own)
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
