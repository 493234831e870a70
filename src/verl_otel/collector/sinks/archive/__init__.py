"""The sink ``archive``: every record of every run as Parquet under ``<home>/archive``."""

from verl_otel.collector.sinks.archive.sink import ArchiveSink

__all__ = ["ArchiveSink"]
