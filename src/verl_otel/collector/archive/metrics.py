"""A run's scalars, under verl's exact keys."""

from __future__ import annotations

from fnmatch import fnmatchcase

from verl_otel import semconv
from verl_otel.collector.archive.encoding import from_text
from verl_otel.collector.archive.model import MetricValue
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.archive.trajectories import Range

# A repeat of an event changes nothing here, because the last value counts.
_SQL = """
SELECT step, body FROM {events} WHERE run_id = $run AND name = $name AND step IS NOT NULL {range}
ORDER BY step, attempt, time_ns
"""


def metrics(reader: Reader, run_id: str, key: str | None = None, steps: Range | None = None) -> list[MetricValue]:
    """The scalars of ``run_id`` by step, then in verl's order; ``key`` is a glob whose ``*`` also matches ``/``.

    A step that was logged twice (a resumed run does it again) has the value logged last.
    """
    values: dict[str, object] = {"run": run_id, "name": semconv.Event.METRICS}
    terms = ""
    for name, operator, step in (("low", ">=", steps and steps.low), ("high", "<=", steps and steps.high)):
        if step is not None:
            terms += f" AND step {operator} ${name}"
            values[name] = step
    found: dict[tuple[int, str], MetricValue] = {}
    for step, body in reader.query(_SQL.replace("{range}", terms), values, [run_id]):
        scalars = from_text(body)
        for name, value in scalars.items() if isinstance(scalars, dict) else ():
            if key is None or fnmatchcase(name, key):
                found[step, name] = MetricValue(step, name, value)
    return list(found.values())
