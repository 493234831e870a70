"""What the docs say and what the code has are one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from verl_otel import semconv

ROOT = Path(__file__).parent.parent


def constants() -> set[str]:
    """Every name in semconv.py, wherever it stands."""
    found: set[str] = set()
    for owner in (semconv, semconv.Resource, semconv.Event, semconv.Metric, semconv.SpanType):
        found |= {value for name, value in vars(owner).items() if name.isupper() and isinstance(value, str)}
    return found - {semconv.SCHEMA_URL, semconv.SCOPE_NAME}


def test_every_name_of_semconv_is_on_its_page_and_the_other_way_round() -> None:
    page = (ROOT / "docs/semconv.md").read_text()
    on_page = set(re.findall(r"`([^`]+)`", page))
    assert constants() - on_page == set()
    names = {
        name for name in on_page if re.fullmatch(r"(verl|rl|gen_ai|service|host|process|error)\.[a-z0-9_.]+", name)
    }
    assert names - constants() == set()


def test_generated_tables_are_what_the_code_says() -> None:
    script = ROOT / "scripts/generate_docs.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_room_of_the_house_imports_what_it_must_not() -> None:
    rules = {
        "collector": ("telemetry", "instrumentation", "cli"),
        "telemetry": ("collector", "instrumentation", "cli"),
        "instrumentation": ("collector", "cli"),
    }
    for room, others in rules.items():
        for path in (ROOT / "src/verl_otel" / room).rglob("*.py"):
            imports = re.findall(r"^\s*(?:from|import) verl_otel\.(\w+)", path.read_text(), re.MULTILINE)
            assert not set(imports) & set(others), path
