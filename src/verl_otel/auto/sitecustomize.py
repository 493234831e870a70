"""Runs at the start of every process of a run: registers import hooks, then gives way to another sitecustomize."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))

try:
    from verl_otel.instrumentation import install

    install()
except Exception as error:
    # One process of a run says it for all: a cluster may start thousands.
    try:
        os.close(os.open(os.environ.get("VERL_OTEL_RUN_FILE", "/nonexistent/x") + ".missing", os.O_CREAT | os.O_EXCL))
    except OSError:
        pass
    else:
        print(f"verl-otel: {sys.executable} runs without telemetry: {type(error).__name__}: {error}", file=sys.stderr)

# Python imports only the first sitecustomize on the path; the one that ours hides still has to run.
_rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _rest)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
