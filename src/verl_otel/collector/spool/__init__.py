"""Requests on disk: a writer that says when they are safe, a reader for other processes, a cursor per sink."""

from verl_otel.collector.spool.cursor import Cursor
from verl_otel.collector.spool.reader import SpoolReader
from verl_otel.collector.spool.segments import Entry
from verl_otel.collector.spool.writer import SpoolFull, SpoolLocked, SpoolWriter

__all__ = ["Cursor", "Entry", "SpoolFull", "SpoolLocked", "SpoolReader", "SpoolWriter"]
