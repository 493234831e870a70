"""What went wrong inside the training processes, as they counted it themselves."""

from __future__ import annotations

from verl_otel import semconv
from verl_otel.collector.archive.reader import Reader

# A counter is cumulative in each process: its last value there counts, and processes add up.
_SQL = """
SELECT name, sum(value) FROM (
    SELECT json_extract_string(attributes, '$.name') AS name,
           json_extract_string(resource, '$."service.instance.id"') AS process, max(value) AS value
    FROM {metrics} WHERE run_id = $run AND name = $metric GROUP BY ALL
) GROUP BY name ORDER BY name
"""


def training_counts(reader: Reader, run_id: str) -> dict[str, int]:
    """What the processes of ``run_id`` sent, tried again, dropped and failed at: name → count."""
    rows = reader.query(_SQL, {"run": run_id, "metric": semconv.Metric.TELEMETRY}, [run_id])
    return {str(name): int(count) for name, count in rows if name}
