"""CPU of the training process per agent turn, all in, beside the stock SDK making and exporting spans of that size.

    python benchmarks/trajectory_cost.py [trajectories]

Both sides run alternately in fresh processes against the same do-nothing endpoint in another process. Ours: a
trajectory of 10 turns of 200 new tokens each, every second one with a tool call, token ids packed and decoded to text
(by a byte decoder: a real tokenizer's own time is left out on purpose). Stock: the same number of spans with the same
texts, made with the SDK, its batch processor (queue large enough to lose nothing) and its OTLP/HTTP exporter.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TURNS = 10
OURS = """
import os, sys, time
n, turns = int(sys.argv[1]), int(sys.argv[2])
import verl_otel
from verl_otel.telemetry import state, trajectories
from verl_otel.telemetry.tool_calls import ToolCall
os.environ["OTEL_METRICS_EXPORTER"] = "none"
verl_otel.init(project="bench")
sdk = state.sdk()
def decode(ids, skip_special_tokens=False):
    return bytes(ids).decode("latin-1")
new = [65 + i % 26 for i in range(200)]
def one(i):
    t = trajectories.start(sdk, agent="a", partition="train", step=1, group=str(i), session=0, messages="question")
    t.decode_with(decode)
    seq = list(new)
    for k in range(turns):
        turn = t.start_turn(seq)
        t.finish_turn(turn, output_ids=new, finish_reason="stop", log_probs=[-0.5] * 200)
        seq = seq + new
        if k % 2:
            ToolCall(t, "calc", "{}", None).finish("42" * 50)
            seq = seq + new[:20]
    t.finish({})
one(-1); state.flush(10)
t = time.process_time()
for i in range(n): one(i)
state.flush(60)
print((time.process_time() - t) / n / turns * 1e6, flush=True)
os._exit(0)
"""
STOCK = """
import os, sys, time, json
n, turns = int(sys.argv[1]), int(sys.argv[2])
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=1_000_000))
tracer = provider.get_tracer("bench")
text = "".join(chr(65 + i % 26) for i in range(200))
ids = "A" * 1068
def one(i):
    with tracer.start_as_current_span("invoke_agent a", attributes={f"k{j}": j for j in range(20)}):
        for k in range(turns):
            with tracer.start_as_current_span("chat") as span:
                span.set_attributes({f"k{j}": j for j in range(10)})
                message = json.dumps([{"role": "user", "parts": [{"type": "text", "content": text}]}])
                span.set_attributes({"in": text, "out": text, "in_ids": ids, "out_ids": ids, "im": message, "om": message})
            if k % 2:
                with tracer.start_as_current_span("execute_tool") as span:
                    span.set_attributes({f"k{j}": "x" for j in range(10)})
one(-1); provider.force_flush()
t = time.process_time()
for i in range(n): one(i)
provider.force_flush()
print((time.process_time() - t) / n / turns * 1e6, flush=True)
os._exit(0)
"""


class Nothing(BaseHTTPRequestHandler):
    """Takes whatever it is sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    count = sys.argv[1] if len(sys.argv) > 1 else "300"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    taken: dict[str, list[float]] = {"verl-otel": [], "stock SDK": []}
    for _ in range(5):
        for name, code in (("verl-otel", OURS), ("stock SDK", STOCK)):
            command = [sys.executable, "-c", code, count, str(TURNS)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
            taken[name].append(float(done.stdout))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, values in taken.items():
        print(f"{medians[name]:8.0f} µs of CPU per turn ({min(values):.0f} to {max(values):.0f})  {name}")
    print(f"{medians['verl-otel'] / medians['stock SDK']:8.2f} times the stock SDK's CPU")


if __name__ == "__main__":
    main()
