"""What was acknowledged arrives once, whatever dies in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.collector.rig import Collector, post, request, span_ids
from verl_otel.collector.decode import spans as decode_spans


class Endpoint:
    """An OTLP/HTTP endpoint that answers as it is told and keeps what it took."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.taken: list[str] = []
        self.times: list[float] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                import gzip

                body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
                code, headers = owner.answers.pop(0) if owner.answers else (200, {})
                owner.times.append(time.monotonic())
                if code == 200:
                    owner.taken += [span.span_id for span in decode_spans(body)]
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def send_until_dead(url: str, start: int, acknowledged: list[int]) -> None:
    for number in range(start, start + 100_000):
        try:
            if post(url, request(number), timeout=5)[0] == 200:
                acknowledged.append(number)
        except OSError:
            return


def test_acknowledged_spans_survive_kill_9_of_the_collector_and_show_up_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    acknowledged: list[int] = []
    for round_ in range(3):
        with Collector(home) as collector:
            url = collector.endpoint("http") + "/v1/traces"
            threads = [
                threading.Thread(target=send_until_dead, args=(url, (round_ * 4 + lane) * 1_000_000 + 1, acknowledged))
                for lane in range(4)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.7)
            collector.stop(signal.SIGKILL)
            for thread in threads:
                thread.join(20)
    assert len(acknowledged) > 100
    with Collector(home) as collector:
        collector.wait_for()
        assert collector.stop() == 0
    found = span_ids(home)
    assert len(set(found)) == len(found)
    assert {f"{number:016x}" for number in acknowledged} <= set(found)


def test_a_killed_worker_is_started_again_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with Collector(tmp_path / "home") as collector:
        url = collector.endpoint("http") + "/v1/traces"
        assert collector.process is not None
        for number in range(1, 61):
            assert post(url, request(number))[0] == 200
            if number % 20 == 0:
                for child in psutil.Process(collector.process.pid).children():
                    child.kill()
        collector.wait_for()
        assert collector.status()["sinks"]["archive"]["restarts"] >= 1
        assert collector.stop() == 0
    assert sorted(span_ids(collector.home)) == [f"{number:016x}" for number in range(1, 61)]


def test_workers_end_when_the_collector_is_killed(tmp_path: Path) -> None:
    with Collector(tmp_path / "home") as collector:
        assert collector.process is not None
        children = psutil.Process(collector.process.pid).children()
        assert children
        collector.stop(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive


@pytest.mark.parametrize("tail", [b"garbage", b"\x56\x50\x00\x00\xff\x00\x00\x00"])
def test_a_torn_tail_is_cut_and_said(tmp_path: Path, tail: bytes) -> None:
    with Collector(tmp_path / "home") as collector:
        assert post(collector.endpoint("http") + "/v1/traces", request(1))[0] == 200
        collector.stop(signal.SIGKILL)
        (segment,) = (collector.home / "spool").glob("*.otlp")
        with segment.open("ab") as handle:
            handle.write(tail)
        collector.start()
        assert post(collector.endpoint("http") + "/v1/traces", request(2))[0] == 200
        assert collector.wait_for()["repaired_bytes"] == len(tail)
        assert collector.stop() == 0
        assert "torn tail" in collector.stderr
    assert sorted(span_ids(collector.home)) == [f"{1:016x}", f"{2:016x}"]


def test_a_full_spool_asks_senders_to_wait_and_takes_again_when_sinks_have_caught_up(tmp_path: Path) -> None:
    with Collector(tmp_path / "home", spool="max_size: 60KiB") as collector:
        url = collector.endpoint("http") + "/v1/traces"
        big = {number: request(number, name="x" * 10_000) for number in range(1, 40)}
        taken = []
        refused = 0
        deadline = time.monotonic() + 40
        waiting = list(big)
        while waiting and time.monotonic() < deadline:
            status, headers, _ = post(url, big[waiting[0]])
            if status == 200:
                taken.append(waiting.pop(0))
            else:
                assert status == 503
                assert int(headers["Retry-After"]) > 0
                refused += 1
                time.sleep(0.2)
        assert not waiting
        assert refused
        collector.wait_for()
        assert collector.stop() == 0
    assert sorted(span_ids(collector.home)) == sorted(f"{number:016x}" for number in taken)


def test_a_sink_that_cannot_deliver_holds_up_nobody_and_gets_everything_later(tmp_path: Path) -> None:
    endpoint = Endpoint()
    exporters = {"archive": "{flush_interval: 200ms}", "otlp": '{endpoint: "http://127.0.0.1:9"}'}
    with Collector(tmp_path / "home", exporters, "shutdown_timeout: 2s") as collector:
        for number in range(1, 11):
            post(collector.endpoint("http") + "/v1/traces", request(number))
        status = collector.wait_for("archive")
        assert status["status"] == "degraded"
        assert "127.0.0.1:9" in status["sinks"]["otlp"]["last_error"]
        assert collector.stop() == 1
        assert "otlp" in collector.stderr
        assert len(span_ids(collector.home)) == 10
        collector.exporters["otlp"] = f"{{endpoint: {endpoint.url!r}}}"
        collector.start()
        collector.wait_for("otlp")
        assert collector.stop() == 0
    assert endpoint.taken == [f"{number:016x}" for number in range(1, 11)]


def test_retry_after_is_honoured_order_is_kept_and_a_final_no_goes_to_the_dead_letters(tmp_path: Path) -> None:
    endpoint = Endpoint()
    endpoint.answers = [(429, {"Retry-After": "2"}), (200, {}), (400, {})]
    retry = "retry_on_failure: {initial_interval: 100ms}"
    with Collector(tmp_path / "home", {"otlp": f"{{endpoint: {endpoint.url!r}, {retry}}}"}) as collector:
        for number in range(1, 5):
            post(collector.endpoint("http") + "/v1/traces", request(number))
        status = collector.wait_for("otlp")
        assert status["sinks"]["otlp"]["rejected"] == 1
        assert status["sinks"]["otlp"]["retries"] >= 1
        assert collector.stop() == 0
    assert endpoint.times[1] - endpoint.times[0] >= 1.9
    assert endpoint.taken == [f"{number:016x}" for number in (1, 3, 4)]
    assert "400" in (collector.home / "dead-letter/otlp.jsonl").read_text()


def test_two_collectors_on_one_home_and_a_taken_port_are_one_line_each(tmp_path: Path) -> None:
    with Collector(tmp_path / "home") as first:
        second = Collector(tmp_path / "home").start()
        assert second.stop() == 2
        assert second.stderr.count("\n") == 1
        assert "in use by another collector" in second.stderr
        other = Collector(tmp_path / "other")
        config = other.config
        port = first.endpoint("http").rpartition(":")[2]
        config.write_text(
            config.read_text().replace('http: {endpoint: "127.0.0.1:0"', f'http: {{endpoint: "127.0.0.1:{port}"')
        )
        import subprocess
        import sys

        argv = [
            sys.executable,
            "-m",
            "verl_otel.cli.main",
            "collector",
            "--home",
            str(other.home),
            "--config",
            str(config),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=40, env=dict(os.environ))
        assert done.returncode == 2
        assert port in done.stderr
        assert "Traceback" not in done.stderr
