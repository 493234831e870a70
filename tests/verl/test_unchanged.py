"""Training goes the same way whatever telemetry does: on, off, with a collector that dies, with one that answers errors.

Sampling is greedy, so siblings are alike; reward and advantage are such that prompts differ, so that there are losses
to compare.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.verl.rig import Training, train

DETERMINISTIC = (
    # Not a temperature near 0: verl divides the logits by it for the loss too, and what is left is rounding.
    "actor_rollout_ref.rollout.top_k=1",
    # Trajectories end in another order each time; in bf16 that alone moves tokens and gradients.
    "actor_rollout_ref.rollout.dtype=float32",
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    f"reward.custom_reward_function.path={Path(__file__).with_name('hash_reward.py')}",
    "algorithm.adv_estimator=reinforce_plus_plus",
    "data.shuffle=False",
    "data.validation_shuffle=False",
    # One micro-batch: which trajectory came first, which is chance, must not decide which are averaged together.
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
    "trainer.total_training_steps=2",
)
# The gradient is what tells most: on the first update of a batch the losses themselves are 0 but for rounding.
COMPARED = (
    "critic/score/mean",
    "critic/rewards/mean",
    "actor/pg_loss",
    "actor/loss",
    "actor/entropy",
    "actor/grad_norm",
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, assets: Path) -> Training:
    """Without any telemetry."""
    done = train(tmp_path_factory.mktemp("plain"), assets, *DETERMINISTIC, launcher=())
    assert done.code == 0, done.log[-5_000:]
    assert not done.home.exists()
    return done


def same(one: Training, other: Training) -> None:
    first, second = one.scalars(), other.scalars()
    assert set(first) == set(second)
    compared = 0
    for step, data in first.items():
        assert set(data) == set(second[step])
        for key in [name for name in data if name in COMPARED or name.startswith("val-")]:
            assert second[step][key] == pytest.approx(data[key], rel=1e-3, abs=1e-5), (step, key)
            compared += data[key] != 0
    assert compared >= 8


def test_a_collector_that_is_killed_half_way_changes_nothing(
    plain: Training, tmp_path_factory: pytest.TempPathFactory, assets: Path
) -> None:
    work = tmp_path_factory.mktemp("killed")
    killed: list[int] = []

    def kill_when_training() -> None:
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            metrics = work / "metrics.jsonl"
            if metrics.exists() and metrics.read_text().strip():
                pid = json.loads((work / "verl-otel-data/collector.json").read_text())["pid"]
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return
            time.sleep(0.2)

    killer = threading.Thread(target=kill_when_training, daemon=True)
    killer.start()
    # verl's own words for telemetry are accepted on the way.
    named = (
        'trainer.logger=["console","file","otel"]',
        "actor_rollout_ref.rollout.trace.backend=otel",
        "actor_rollout_ref.rollout.trace.token2text=True",
        "+verl_otel.max_length=4096",
    )
    done = train(work, assets, *DETERMINISTIC, *named)
    killer.join(1)
    assert killed
    assert done.code == 0, done.log[-5_000:]
    same(plain, done)
    # What was taken before the end of the collector is safe, and shown.
    (run,) = done.ask("runs")
    assert run["run_id"]


@pytest.fixture
def failing_endpoint() -> Iterator[str]:
    class Failing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_opentelemetry_instrument_with_an_endpoint_that_answers_errors_changes_nothing(
    plain: Training, tmp_path_factory: pytest.TempPathFactory, assets: Path, failing_endpoint: str
) -> None:
    work = tmp_path_factory.mktemp("errors")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": failing_endpoint}
    done = train(work, assets, *DETERMINISTIC, launcher=("opentelemetry-instrument",), env=env)
    assert done.code == 0, done.log[-5_000:]
    same(plain, done)
    assert "the OTLP endpoint does not take data" in done.log
