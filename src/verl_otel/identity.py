"""Ids that any process of a run can compute, so that no context has to travel between processes.

A step's and a trajectory's trace id and root span id are hashes of what names them. The trainer can hang an event
on a trajectory that a worker on another node rolled out, and a trajectory can link to its step, with nothing sent
over Ray. Phases have computed span ids too, so that a rank's span is a child of its phase.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import NamedTuple


class SpanId(NamedTuple):
    """A span's address: ``trace_id`` (128 bit) and ``span_id`` (64 bit), both never zero."""

    trace_id: int
    span_id: int


def _digest(parts: tuple[object, ...], size: int) -> int:
    # A separator that cannot occur in the parts keeps ("a", "bc") and ("ab", "c") apart.
    text = "\x1f".join(str(part) for part in parts)
    value = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big")
    return value or 1


def new_run_id() -> str:
    """A new run id, sorted by its time: ``20261201-124250-a3f9c1`` (UTC). Legal in every tracker."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + os.urandom(3).hex()


def step_context(run_id: str, attempt: int, step: int) -> SpanId:
    """The root span of training step ``step``; step 0 is the validation before training."""
    parts = (run_id, attempt, "step", step)
    return SpanId(_digest(parts, 16), _digest(parts, 8))


def phase_context(run_id: str, attempt: int, step: int, phase: str, occurrence: int = 0) -> SpanId:
    """The span of the ``occurrence``-th run (from 0) of phase ``phase`` in training step ``step``."""
    trace_id = step_context(run_id, attempt, step).trace_id
    return SpanId(trace_id, _digest((run_id, attempt, "step", step, phase, occurrence), 8))


def trajectory_context(
    run_id: str, attempt: int, partition: str, uid: str, session: int | str, index: int = 0
) -> SpanId:
    """The root span of one trajectory of ``partition`` ``train`` or ``val``; V1's key is ``{uid}_{session}_{index}``."""
    parts = (run_id, attempt, partition, uid, session, index)
    return SpanId(_digest(parts, 16), _digest(parts, 8))


def reward_context(trajectory: SpanId) -> SpanId:
    """The ``compute_reward`` span of a trajectory, which a reward worker's own spans are children of."""
    return SpanId(trajectory.trace_id, _digest((trajectory.trace_id, "compute_reward"), 8))
