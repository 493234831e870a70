"""Runs of ours as MLflow runs: found again by a tag, with params, metrics, tables and status."""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_otel import semconv
from verl_otel.collector.records import EventRecord, Resource
from verl_otel.collector.sinks.base import Counters, Reject
from verl_otel.collector.sinks.mlflow.backend import Backend, translated
from verl_otel.collector.sinks.mlflow.config import MlflowConfig

logger = logging.getLogger(__name__)

RUN_TAG = "verl_otel.run_id"
KEYS_ARTIFACT = "verl_otel/metric_keys.json"
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "crashed": "FAILED", "interrupted": "KILLED"}
_PARAM_CHARS, _PARAM_BATCH, _METRIC_BATCH = 6_000, 100, 1_000
_ILLEGAL, _SLASHES = re.compile(r"[^/\w.\- :]"), re.compile(r"/+")


@dataclass(slots=True)
class MlflowRun:
    """One MLflow run; ``keys`` maps verl's metric keys to legal ones."""

    experiment_id: str
    run_id: str
    keys: dict[str, str] = field(default_factory=dict)


class Runs:
    """All runs that the sink has seen."""

    def __init__(self, backend: Backend, config: MlflowConfig, counters: Counters) -> None:
        self._backend = backend
        self._config = config
        self._counters = counters
        self._experiments: dict[str, str] = {}
        self._runs: dict[str, MlflowRun] = {}

    def of(self, resource: Resource, time_ns: int) -> MlflowRun:
        """The MLflow run of a record's run, made if it is not there."""
        known = self._runs.get(resource.run_id)
        if known is None:
            with translated(self._backend.uri):
                known = self._runs[resource.run_id] = self._find_or_make(resource, time_ns)
        return known

    def _find_or_make(self, resource: Resource, time_ns: int) -> MlflowRun:
        experiment_id = self._experiment(self._config.experiment or resource.project or "verl")
        quoted = resource.run_id.replace("'", "")
        found = self._backend.client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{quoted}'", max_results=1)
        if found:
            run_id = found[0].info.run_id
            # Keys keep the names that they were given before a restart.
            return MlflowRun(experiment_id, run_id, dict(self._artifact(run_id, KEYS_ARTIFACT) or {}))
        tags = {
            RUN_TAG: resource.run_id,
            "verl_otel.project": resource.project,
            "verl_otel.algorithm": str(resource.attributes.get(semconv.Resource.ALGORITHM, "")),
            "verl_otel.model": str(resource.attributes.get(semconv.Resource.MODEL, "")),
        }
        made = self._backend.client.create_run(
            experiment_id,
            start_time=time_ns // 1_000_000,
            run_name=resource.experiment or resource.run_id,
            tags={key: value for key, value in tags.items() if value},
        )
        return MlflowRun(experiment_id, made.info.run_id)

    def _artifact(self, run_id: str, path: str) -> Any:
        """A JSON artifact of the run, ``None`` if there is none."""
        folder = path.rpartition("/")[0]
        if path not in {item.path for item in self._backend.client.list_artifacts(run_id, folder)}:
            return None
        with tempfile.TemporaryDirectory() as target:
            return json.loads(Path(self._backend.client.download_artifacts(run_id, path, target)).read_text())

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            client = self._backend.client
            found = client.get_experiment_by_name(name)
            if found is None:
                self._experiments[name] = client.create_experiment(name, artifact_location=self._location(name))
            else:
                self._experiments[name] = found.experiment_id
        return self._experiments[name]

    def _location(self, name: str) -> str | None:
        if self._backend.artifacts is None:
            return None
        return f"{self._backend.artifacts}/{re.sub(r'[^A-Za-z0-9_-]', '_', name)}"

    def started(self, event: EventRecord) -> None:
        """Params from the config, the whole config as an artifact, and the run as running."""
        run = self.of(event.resource, event.time_ns)
        body = event.body if isinstance(event.body, Mapping) else {}
        client = self._backend.client
        with translated(self._backend.uri):
            client.update_run(run.run_id, status="RUNNING")
            client.log_dict(run.run_id, dict(body), f"verl_otel/config_attempt_{event.resource.attempt}.json")
            client.set_tag(run.run_id, "verl_otel.attempt", str(event.resource.attempt))
            for group in ("versions", "git"):
                for name, value in (body.get(group) or {}).items():
                    client.set_tag(run.run_id, f"verl_otel.{group}.{name}", str(value))
            self._log_params(run, dict(flattened(body.get("config") or {})))

    def _log_params(self, run: MlflowRun, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        # A param's value cannot change; what a later attempt changed is in its config artifact.
        there = self._backend.client.get_run(run.run_id).data.params
        new = [Param(key, value) for key, value in params.items() if key and key not in there]
        self._counters.add("changed_params", sum(there.get(key, value) != value for key, value in params.items()))
        for start in range(0, len(new), _PARAM_BATCH):
            self._backend.client.log_batch(run.run_id, params=new[start : start + _PARAM_BATCH])

    def metrics(self, event: EventRecord) -> None:
        """Every number of a ``verl.metrics`` event, at its step."""
        from mlflow.entities import Metric

        run = self.of(event.resource, event.time_ns)
        body = event.body if isinstance(event.body, Mapping) else {}
        step = int(event.attributes.get(semconv.STEP, 0))
        points = []
        known = len(run.keys)
        for key, value in body.items():
            if isinstance(value, (int, float)):
                points.append(Metric(self._legal(run, str(key)), float(value), event.time_ns // 1_000_000, step))
            else:
                self._counters.add("skipped_metrics")
        with translated(self._backend.uri):
            for start in range(0, len(points), _METRIC_BATCH):
                self._log_metrics(run, points[start : start + _METRIC_BATCH])
            changed = {key: legal for key, legal in run.keys.items() if key != legal}
            if len(run.keys) > known and changed:
                self._backend.client.log_dict(run.run_id, changed, KEYS_ARTIFACT)

    def _log_metrics(self, run: MlflowRun, points: list[Any]) -> None:
        try:
            with translated(self._backend.uri):
                self._backend.client.log_batch(run.run_id, metrics=points)
        except Reject:
            if len(points) == 1:
                self._counters.add("refused_metrics")
                return
            # One bad key fails a whole batch: find it, keep the others.
            middle = len(points) // 2
            self._log_metrics(run, points[:middle])
            self._log_metrics(run, points[middle:])

    @staticmethod
    def _legal(run: MlflowRun, key: str) -> str:
        """verl's own mapping of keys, with a number behind those that would fall on another key's."""
        if key not in run.keys:
            legal = base = (_ILLEGAL.sub("_", _SLASHES.sub("/", key.replace("@", "_at_"))).strip("/") or "_")[:240]
            number = 2
            while legal in run.keys.values():
                legal, number = f"{base}_{number}", number + 1
            run.keys[key] = legal
        return run.keys[key]

    def generations(self, events: Iterable[EventRecord]) -> None:
        """Validation samples as one table a step, which MLflow's UI shows."""
        tables: dict[tuple[str, int], list[EventRecord]] = {}
        for event in events:
            tables.setdefault((event.resource.run_id, int(event.attributes.get(semconv.STEP, 0))), []).append(event)
        for (_, step), rows in tables.items():
            run = self.of(rows[0].resource, rows[0].time_ns)
            columns = ["index", "step", "input", "output", "score", "ground_truth"]
            file = f"val_generations/step_{step:06d}.json"
            with translated(self._backend.uri):
                # A step's samples may come in several batches: put the new ones to those that are there.
                there = self._artifact(run.run_id, file) or {"data": []}
                table = {row[0]: row for row in there["data"]}
                for event in rows:
                    index = event.attributes.get(semconv.GENERATION_INDEX, 0)
                    table[index] = [index, step, *((event.body or {}).get(name) for name in columns[2:])]
                data = [table[index] for index in sorted(table)]
                self._backend.client.log_dict(run.run_id, {"columns": columns, "data": data}, file)
                self._register_table(run, file)

    def _register_table(self, run: MlflowRun, file: str) -> None:
        tag = "mlflow.loggedArtifacts"
        there = json.loads(self._backend.client.get_run(run.run_id).data.tags.get(tag, "[]"))
        entry = {"path": file, "type": "table"}
        if entry not in there:
            self._backend.client.set_tag(run.run_id, tag, json.dumps([*there, entry]))

    def finished(self, event: EventRecord) -> None:
        """The run's end, as the training ended."""
        run = self.of(event.resource, event.time_ns)
        status = _STATUS.get(str(event.attributes.get(semconv.RUN_STATUS)), "FINISHED")
        with translated(self._backend.uri):
            self._backend.client.set_terminated(run.run_id, status, event.time_ns // 1_000_000)
            if event.body:
                self._backend.client.set_tag(run.run_id, "verl_otel.error", str(event.body)[:5_000])


def flattened(value: Any, key: str = "") -> Iterable[tuple[str, str]]:
    """A nested config as verl's own MLflow logger flattens it: ``a/b``, lists as ``a/list_len`` and ``a/0``…"""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from flattened(item, f"{key}/{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        yield f"{key}/list_len", str(len(value))
        for index, item in enumerate(value):
            yield from flattened(item, f"{key}/{index}")
    else:
        legal = _ILLEGAL.sub("_", key)[:250]
        yield legal, str(value)[:_PARAM_CHARS]
