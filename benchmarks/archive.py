"""Rows a second into the archive, and how long the commands' questions take: ``python benchmarks/archive.py [STEPS]``.

A step is 512 trajectories of 4 turns and 3 tool calls, about 2 kB of text a turn: 5k spans. Records are made before
the clock starts.
"""

from __future__ import annotations

import json
import os
import random
import resource as process
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_otel import identity, semconv
from verl_otel.collector.archive.metrics import metrics
from verl_otel.collector.archive.reader import Reader
from verl_otel.collector.archive.runs import runs
from verl_otel.collector.archive.trace import show
from verl_otel.collector.archive.trajectories import Comparison, Filter, Range, trajectories
from verl_otel.collector.records import Batch, EventRecord, Position, Resource, SpanRecord
from verl_otel.collector.sinks.archive import ArchiveSink
from verl_otel.collector.sinks.base import Counters, SinkContext

RUN = "20260101-000000-abc123"
TRAJECTORIES = 512
WORDS = [os.urandom(random.randint(2, 5)).hex() for _ in range(5000)]
OWNER = Resource({semconv.Resource.RUN_ID: RUN, semconv.Resource.PROJECT: "bench", semconv.Resource.ROLE: "agent_loop"})


def text() -> str:
    return " ".join(random.choices(WORDS, k=250))


def step_records(step: int) -> tuple[list[SpanRecord], list[EventRecord]]:
    spans: list[SpanRecord] = []
    events: list[EventRecord] = []
    now = 1_790_000_000_000_000_000 + step * 60_000_000_000
    for index in range(TRAJECTORIES):
        ids = identity.trajectory_context(RUN, 1, "train", f"{step}-{index // 8}", index % 8)
        trace_id, root_id = f"{ids.trace_id:032x}", f"{ids.span_id:016x}"
        common = {semconv.STEP: step, semconv.PARTITION: "train"}
        reward = random.random()
        for turn in range(4):
            said = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": text()}]}])
            attributes = {
                **common,
                semconv.SPAN_TYPE: "turn",
                semconv.TURN_INDEX: turn,
                semconv.TURN_OUTPUT_TEXT: text(),
                semconv.OUTPUT_MESSAGES: said,
            }
            spans.append(
                SpanRecord(OWNER, trace_id, os.urandom(8).hex(), root_id, "chat", now, now + 10**9, attributes)
            )
            if turn < 3:
                attributes = {**common, semconv.SPAN_TYPE: "tool", semconv.TURN_INDEX: turn, semconv.TOOL_RESULT: "4"}
                spans.append(
                    SpanRecord(OWNER, trace_id, os.urandom(8).hex(), root_id, "execute_tool", now, now, attributes)
                )
        attributes = {
            **common,
            semconv.SPAN_TYPE: "trajectory",
            semconv.GROUP_ID: f"{step}-{index // 8}",
            semconv.GROUP_INDEX: index % 8,
            semconv.REWARD: reward,
            semconv.TURNS: 4,
            semconv.TOOL_CALLS: 3,
            semconv.TOOL_ERRORS: int(index % 50 == 0),
            semconv.AGENT_NAME: "tool_agent",
        }
        spans.append(SpanRecord(OWNER, trace_id, root_id, "", "invoke_agent", now, now + 5 * 10**9, attributes))
        outcome = {semconv.EVENT_ID: trace_id, semconv.OUTCOME: "trained", semconv.STEP: step, semconv.ADVANTAGE: 0.1}
        events.append(EventRecord(OWNER, semconv.Event.OUTCOME, now, outcome, None, trace_id, root_id))
    scalars = {f"actor/some_metric_{number}": random.random() for number in range(100)}
    events.append(
        EventRecord(OWNER, semconv.Event.METRICS, now, {semconv.EVENT_ID: f"m{step}", semconv.STEP: step}, scalars)
    )
    return spans, events


def timed(name: str, ask: Callable[[], Any]) -> None:
    began = time.perf_counter()
    found = ask()
    count = f"{len(found)} rows" if isinstance(found, list) else ""
    print(f"{name:<44}{(time.perf_counter() - began) * 1000:8.0f} ms  {count}")


def main(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        counters = Counters()
        config = ArchiveSink.check({"flush_interval": "1s"}, "exporters.archive")
        sink = ArchiveSink(config, SinkContext("archive", home, home / "state", counters))
        sink.start()
        rows, spent = 0, 0.0
        trace_id = ""
        for step in range(1, steps + 1):
            spans, events = step_records(step)
            trace_id = spans[0].trace_id
            rows += len(spans) + len(events)
            began = time.perf_counter()
            for index in range(0, len(spans), 512):
                start = Position(step, index)
                sink.deliver(Batch(start, Position(step, index + 512), spans[index : index + 512]))
            sink.deliver(Batch(Position(step, len(spans)), Position(step + 1, 0), events=events))
            spent += time.perf_counter() - began
        began = time.perf_counter()
        sink.close(drain=True)
        spent += time.perf_counter() - began
        files = list(home.glob("archive/*/*/*.parquet"))
        size = sum(path.stat().st_size for path in files) / 2**20
        print(f"{rows} rows in {spent:.1f} s: {rows / spent:.0f} rows/s, fsync, merging and all")
        print(f"{len(files)} files, {size:.0f} MiB, {counters.values.get('archive.compactions', 0)} merges")
        reader = Reader(home)
        timed("runs", lambda: runs(reader))
        timed("trajectories, one step", lambda: trajectories(reader, RUN, Filter(step=Range(2, 2))))
        low = Filter(reward=(Comparison("<", 0.1),), tool_error=True, sort="reward", limit=50)
        timed("trajectories, reward < 0.1 with a tool error", lambda: trajectories(reader, RUN, low))
        timed("show, a prefix of 12", lambda: show(reader, trace_id[:12]))
        timed("metrics, one key of 100", lambda: metrics(reader, RUN, "actor/some_metric_7"))
        print(f"peak memory {process.getrusage(process.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
