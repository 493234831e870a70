"""Small things that every span of ours needs: its ids, and how it says that something failed."""

from __future__ import annotations

import traceback

from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from verl_otel import semconv
from verl_otel.identity import SpanId


def span_ids(span: trace.Span) -> SpanId:
    """The ids of a span of this process."""
    context = span.get_span_context()
    return SpanId(context.trace_id, context.span_id)


def set_refused(span: trace.Span, kind: str, message: str) -> None:
    """Mark a tool call that could not be made, or whose failure came back as text."""
    span.set_attribute(semconv.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, message))


def set_error(span: trace.Span, error: BaseException) -> None:
    """Mark ``span`` as failed by ``error``, with its stack as an exception event."""
    span.set_attribute(semconv.ERROR_TYPE, type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-8_000:]
    span.add_event(
        "exception",
        {
            "exception.type": type(error).__name__,
            "exception.message": str(error),
            "exception.stacktrace": stack,
        },
    )
