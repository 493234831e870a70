"""CPU time of what a training process imports, beside what it costs to import the OpenTelemetry SDK alone.

    python benchmarks/import_time.py [rounds]

Each line is the median over fresh interpreters, with the bare interpreter's own time taken off.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

CASES = {
    "import verl_otel": "import verl_otel",
    "hooks installed (every process of a run)": "import verl_otel.instrumentation as i; i.install()",
    "hooks loaded and SDK made (processes that emit)": (
        "import verl_otel, os; os.environ['VERL_OTEL_RUN_ID'] = 'r'; os.environ['OTEL_METRICS_EXPORTER'] = 'none';"
        "from verl_otel.instrumentation import driver, trainer, rollout, tools, ranks, servers;"
        "from verl_otel.telemetry import state; state.sdk()"
    ),
    "stock: SDK and OTLP/HTTP exporter": (
        "import opentelemetry.sdk.trace.export, opentelemetry.exporter.otlp.proto.http.trace_exporter"
    ),
}


def cpu_ms(code: str) -> float:
    """CPU milliseconds, user and system, of a fresh interpreter that runs ``code``."""
    probe = f"{code}\nimport os; t = os.times(); os.write(1, str((t.user + t.system) * 1e3).encode()); os._exit(0)"
    return float(subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True, timeout=60).stdout)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    cases = {"bare": "pass", **CASES}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, code in cases.items():
            taken[name].append(cpu_ms(code))
    bare = statistics.median(taken.pop("bare"))
    for name, values in taken.items():
        print(f"{statistics.median(values) - bare:7.0f} ms  {name}")


if __name__ == "__main__":
    main()
