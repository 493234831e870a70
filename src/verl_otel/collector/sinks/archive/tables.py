"""Rows to Parquet, and small Parquet files to a bigger one; both bounded in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from verl_otel.collector.archive.columns import COLUMNS
from verl_otel.collector.sinks.archive.rows import Row

_TYPES: Final = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "floats": pa.list_(pa.float64()),
    "ints": pa.list_(pa.int64()),
}
SCHEMAS: Final[dict[str, Any]] = {
    signal: pa.schema([pa.field(name, _TYPES[kind]) for name, kind in columns.items()])
    for signal, columns in COLUMNS.items()
}
# Long texts, each another: a dictionary only costs, and their minimum and maximum would fill the footer.
_TEXTS: Final = {"attributes", "events", "links", "body", "exemplars", "status_message"}
_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024


def _writer(path: Path, schema: Any) -> Any:
    short = [name for name in schema.names if name not in _TEXTS]
    # Parquet knows a list by the path of its leaf, which these options want: lists go without.
    flat = [name for name in short if not pa.types.is_list(schema.field(name).type)]
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=flat, write_statistics=flat)


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's names, safe on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, signal: str, rows: Sequence[Row]) -> int:
    """Write ``rows`` to ``path`` and fsync it; returns its size in bytes. Raises ``OSError``."""
    schema = SCHEMAS[signal]
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    with _writer(path, schema) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    fsync_path(path)
    return path.stat().st_size


def merge(path: Path, signal: str, sources: Iterable[Path]) -> int:
    """Write the rows of ``sources`` to ``path`` and fsync it; returns its size in bytes.

    A source written by an older version lacks newer columns: they are filled with nulls.
    """
    schema = SCHEMAS[signal]
    waiting: list[Any] = []
    size = 0
    with _writer(path, schema) as writer:
        for source in sources:
            with pq.ParquetFile(source) as file:
                for index in range(file.num_row_groups):
                    table = _fit(file.read_row_group(index), schema)
                    waiting.append(table)
                    size += table.nbytes
                    if size >= _ROW_GROUP_BYTES:
                        writer.write_table(pa.concat_tables(waiting))
                        waiting, size = [], 0
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    fsync_path(path)
    return path.stat().st_size


def _fit(table: Any, schema: Any) -> Any:
    if table.schema.equals(schema):
        return table
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
