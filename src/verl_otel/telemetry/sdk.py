"""OpenTelemetry's SDK, set up for a training process: own providers, own ids, the outlet instead of a batch processor.

The providers are private. A program that runs under ``opentelemetry-instrument`` keeps its global ones, and ours need
not share their queue, their sampling of ids or their settings; all read the same ``OTEL_*`` variables.
"""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Observation
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from verl_otel import __version__, semconv
from verl_otel.identity import SpanId
from verl_otel.telemetry import guard
from verl_otel.telemetry.outlet import Exporter, Outlet, calm, quietly
from verl_otel.telemetry.run import Run
from verl_otel.telemetry.settings import Settings, capture_content

_METRIC_INTERVAL_MS = 10_000
_EXPORTER_CLASSES = {"traces": "OTLPSpanExporter", "logs": "OTLPLogExporter", "metrics": "OTLPMetricExporter"}
_EXPORTER_MODULES = {"traces": "trace_exporter", "logs": "_log_exporter", "metrics": "metric_exporter"}


class ComputedIds(IdGenerator):
    """Ids from ``os.urandom``, or the ones that the caller computed. Never the global ``random``: verl seeds it."""

    def __init__(self) -> None:
        self._next = threading.local()

    def use(self, ids: SpanId) -> None:
        """The next span of this thread gets these ids."""
        self._next.ids = ids

    def generate_span_id(self) -> int:
        ids: SpanId | None = getattr(self._next, "ids", None)
        if ids is not None:
            self._next.ids = None
            return ids.span_id
        return int.from_bytes(os.urandom(8), "big") or 1

    def generate_trace_id(self) -> int:
        # The SDK asks for the trace id first; the span id then clears what was set.
        ids: SpanId | None = getattr(self._next, "ids", None)
        return ids.trace_id if ids is not None else (int.from_bytes(os.urandom(16), "big") or 1)

    def is_trace_id_random(self) -> bool:
        return False


class _SpanOutlet(SpanProcessor):
    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._outlet.put(span)

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._outlet.flush(timeout_millis / 1000)


class _LogOutlet(LogRecordProcessor):
    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def on_emit(self, log_record: Any) -> None:
        self._outlet.put(log_record)

    # The SDK's name for ``on_emit`` before 1.35
    emit = on_emit

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._outlet.flush(timeout_millis / 1000)


def otlp_context(ids: SpanId) -> SpanContext:
    """A span context for a span that another process may own."""
    return SpanContext(ids.trace_id, ids.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def parent(ids: SpanId) -> Context:
    """A context in which new spans are children of ``ids``."""
    return trace.set_span_in_context(NonRecordingSpan(otlp_context(ids)), Context())


class Sdk:
    """Everything that a process needs to emit; made once, with the process's role known."""

    def __init__(self, settings: Settings, run: Run, role: Mapping[str, Any]) -> None:
        self.settings = settings
        self.run = run
        # Whether messages, tool arguments and results may leave the process
        self.capture = capture_content()
        resource = self._resource = _resource(run, role)
        self._ids = ComputedIds()
        self._spans = self._outlet("spans", "traces")
        self._events = self._outlet("events", "logs")
        self._tracer_provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        if self._spans:
            self._tracer_provider.add_span_processor(_SpanOutlet(self._spans))
        self._logger_provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
        if self._events:
            self._logger_provider.add_log_record_processor(_LogOutlet(self._events))
        self._meter_provider = MeterProvider(_metric_readers(), resource=resource, shutdown_on_exit=False)
        self._tracer = self._tracer_provider.get_tracer(semconv.SCOPE_NAME, __version__, semconv.SCHEMA_URL)
        self._logger = self._logger_provider.get_logger(semconv.SCOPE_NAME, __version__, semconv.SCHEMA_URL)
        self._meter = self._meter_provider.get_meter(semconv.SCOPE_NAME, __version__, semconv.SCHEMA_URL)
        self._emits_keywords = "event_name" in inspect.signature(self._logger.emit).parameters
        self._instruments: dict[str, Any] = {}
        self._meter.create_observable_counter(
            semconv.Metric.TELEMETRY,
            [lambda _: [Observation(count, {"name": name}) for name, count in guard.counts().items()]],
        )

    def _outlet(self, kind: str, signal: str) -> Outlet | None:
        if not _wants(signal):
            return None
        settings = self.settings
        limits = (settings.flush_interval, settings.queue_size, settings.retry_for, settings.queue_bytes)
        return Outlet(kind, lambda: _exporter(signal), *limits)

    def start_span(
        self,
        name: str,
        attributes: Mapping[str, Any],
        ids: SpanId | None = None,
        context: Context | None = None,
        links: Sequence[SpanId] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        start_ns: int | None = None,
    ) -> trace.Span:
        """Start a span. ``ids`` are its computed ids; without ``context`` it is the root of a trace."""
        if ids is not None:
            self._ids.use(ids)
        return self._tracer.start_span(
            name,
            context=context if context is not None else Context(),
            kind=kind,
            attributes=dict(attributes),
            links=[Link(otlp_context(link)) for link in links],
            start_time=start_ns,
        )

    def event(
        self,
        name: str,
        attributes: Mapping[str, Any],
        body: Any = None,
        ids: SpanId | None = None,
        time_ns: int | None = None,
    ) -> None:
        """Emit an event, in the context of the span ``ids`` if given."""
        now = time.time_ns()
        if not self._emits_keywords:
            self._emit_record(name, attributes, body, ids, time_ns or now)
            return
        self._logger.emit(
            timestamp=time_ns or now,
            observed_timestamp=now,
            context=parent(ids) if ids is not None else Context(),
            body=body,
            attributes=dict(attributes),
            event_name=name,
        )

    def _emit_record(
        self, name: str, attributes: Mapping[str, Any], body: Any, ids: SpanId | None, time_ns: int
    ) -> None:
        """``Logger.emit`` before OpenTelemetry 1.39: a record of the SDK's, whose event has its name as an attribute."""
        from opentelemetry._logs import SeverityNumber
        from opentelemetry.sdk import _logs

        record_class: Any = _logs.LogRecord  # type: ignore[attr-defined]
        record = record_class(
            timestamp=time_ns,
            observed_timestamp=time_ns,
            trace_id=ids.trace_id if ids else 0,
            span_id=ids.span_id if ids else 0,
            trace_flags=TraceFlags(TraceFlags.SAMPLED if ids else TraceFlags.DEFAULT),
            severity_number=SeverityNumber.INFO,
            body=_without_none(body),
            resource=self._resource,
            attributes={**attributes, "event.name": name},
        )
        self._logger.emit(record)

    def histogram(self, name: str, value: float, attributes: Mapping[str, Any], ids: SpanId | None, unit: str) -> None:
        """Record one value; ``ids`` is the span that the exemplar points to."""
        instrument = self._instruments.get(name)
        if instrument is None:
            instrument = self._instruments[name] = self._meter.create_histogram(name, unit=unit)
        instrument.record(value, attributes, context=parent(ids) if ids is not None else None)

    def gauge(self, name: str, value: float, attributes: Mapping[str, Any], ids: SpanId | None) -> None:
        """Set a gauge; ``ids`` is the span that the exemplar points to."""
        instrument = self._instruments.get(name)
        if instrument is None:
            instrument = self._instruments[name] = self._meter.create_gauge(name)
        instrument.set(value, attributes, context=parent(ids) if ids is not None else None)

    def flush_soon(self) -> None:
        """Send what is queued now, in the background."""
        for outlet in (self._spans, self._events):
            if outlet:
                outlet.flush_soon()

    def flush(self, timeout_s: float) -> bool:
        """Send all that is queued, waiting at most ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        thread = threading.Thread(target=self._flush_metrics, name="verl-otel-metrics-flush", daemon=True)
        thread.start()
        done = [outlet.flush(max(0.0, deadline - time.monotonic())) for outlet in (self._spans, self._events) if outlet]
        thread.join(max(0.0, deadline - time.monotonic()))
        return all(done) and not thread.is_alive()

    def _flush_metrics(self) -> None:
        with guard.guarded("metrics"):
            self._meter_provider.force_flush(10_000)

    def close(self, timeout_s: float) -> None:
        """Flush, then stop; what is left after ``timeout_s`` seconds is given up and counted."""
        deadline = time.monotonic() + timeout_s
        self.flush(timeout_s)
        for outlet in (self._spans, self._events):
            if outlet:
                outlet.close(max(0.1, deadline - time.monotonic()))


def _without_none(value: Any) -> Any:
    """``value`` as those versions can encode it."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return "None" if value is None else value


def _wants(signal: str) -> bool:
    value = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip().lower()
    if value not in ("", "otlp", "none"):
        guard.warn_once("sdk", f"OTEL_{signal.upper()}_EXPORTER={value}: verl-otel exports by otlp only; using otlp")
    return value != "none"


def _exporter(signal: str) -> Exporter:
    protocol = os.environ.get(
        f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL",
        os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    )
    transport = "grpc" if protocol == "grpc" else "http"
    try:
        module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{transport}.{_EXPORTER_MODULES[signal]}")
    except ImportError:
        guard.warn_once(
            "sdk",
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs `pip install opentelemetry-exporter-otlp-proto-grpc`",
        )
        module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.http.{_EXPORTER_MODULES[signal]}")
    exporter: Exporter = getattr(module, _EXPORTER_CLASSES[signal])()
    return exporter


def _metric_readers() -> list[MetricReader]:
    if not _wants("metrics"):
        return []
    exporter: Any = _exporter("metrics")
    calm(exporter)
    exporter.export = quietly(exporter.export)
    interval = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _METRIC_INTERVAL_MS))
    return [PeriodicExportingMetricReader(exporter, export_interval_millis=interval)]


def _resource(run: Run, role: Mapping[str, Any]) -> Resource:
    names = semconv.Resource
    own: dict[str, Any] = {
        names.SERVICE_NAME: "verl",
        names.SERVICE_INSTANCE_ID: str(uuid.UUID(bytes=os.urandom(16), version=4)),
        names.HOST_NAME: socket.gethostname(),
        names.PROCESS_PID: os.getpid(),
    }
    fixed = {
        names.RUN_ID: run.run_id,
        names.SYSTEM: "verl",
        names.ATTEMPT: run.attempt,
        names.PROJECT: run.project,
        names.EXPERIMENT: run.experiment,
        names.ALGORITHM: run.algorithm,
        names.MODEL: run.model,
        **role,
    }
    # What the user says in OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME wins over defaults, not over identity.
    return (
        Resource(own)
        .merge(OTELResourceDetector().detect())
        .merge(Resource({key: value for key, value in fixed.items() if value not in ("", None)}))
    )
