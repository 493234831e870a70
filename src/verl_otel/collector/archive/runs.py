"""Which runs there are and how they stand."""

from __future__ import annotations

from verl_otel import semconv
from verl_otel.collector.archive.encoding import from_text
from verl_otel.collector.archive.layout import UNKNOWN_RUN
from verl_otel.collector.archive.model import Run
from verl_otel.collector.archive.reader import Reader, when

_SQL = """
WITH seen AS (
    SELECT run_id, attempt, project, experiment, resource, start_ns AS first_ns, end_ns AS last_ns,
           CASE WHEN type = $step_type THEN step END AS step,
           CASE WHEN type = $trajectory_type THEN trace_id END AS trajectory,
           NULL::BIGINT AS started_ns, NULL::VARCHAR AS ended, NULL::BIGINT AS ended_ns
    FROM {spans}
    UNION ALL
    SELECT run_id, attempt, project, experiment, resource, time_ns, time_ns,
           CASE WHEN name = $metrics THEN step END,
           NULL,
           CASE WHEN name = $started THEN time_ns END,
           CASE WHEN name = $finished THEN run_status END,
           CASE WHEN name = $finished THEN time_ns END
    FROM {events}
),
last_attempts AS (
    SELECT run_id, attempt, arg_max(ended, ended_ns) AS status FROM seen GROUP BY run_id, attempt
    QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY attempt DESC) = 1
)
SELECT run_id, arg_max(project, seen.attempt), arg_max(experiment, seen.attempt), any_value(last_attempts.attempt),
       any_value(last_attempts.status), coalesce(min(started_ns), min(first_ns)) AS began, max(last_ns),
       count(DISTINCT step) FILTER (WHERE step >= 1), max(step), count(DISTINCT trajectory),
       arg_max(resource, seen.attempt)
FROM seen JOIN last_attempts USING (run_id)
WHERE run_id <> $unknown
GROUP BY run_id
ORDER BY began DESC, run_id DESC
"""


def runs(reader: Reader) -> list[Run]:
    """All runs, the one begun last first. A run without an end in its last attempt is ``running``."""
    rows = reader.query(
        _SQL,
        {
            "step_type": semconv.SpanType.STEP,
            "trajectory_type": semconv.SpanType.TRAJECTORY,
            "metrics": semconv.Event.METRICS,
            "started": semconv.Event.RUN_STARTED,
            "finished": semconv.Event.RUN_FINISHED,
            "unknown": UNKNOWN_RUN,
        },
    )
    found = []
    for run_id, project, experiment, attempt, status, began, last, steps, last_step, trajectories, text in rows:
        resource = from_text(text) or {}
        found.append(
            Run(
                run_id=run_id,
                project=project,
                experiment=experiment,
                attempt=attempt,
                status=status or "running",
                started_at=when(began),
                last_seen_at=when(last),
                steps=steps,
                last_step=last_step,
                trajectories=trajectories,
                model=str(resource.get(semconv.Resource.MODEL, "")),
                algorithm=str(resource.get(semconv.Resource.ALGORITHM, "")),
            )
        )
    return found
