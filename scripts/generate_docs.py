"""Writes the tables of docs/ and the READMEs that code is the source of; ``--check`` only says whether they differ."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

from verl_otel.instrumentation.table import HOOKS
from verl_otel.telemetry.settings import Settings

ROOT = Path(__file__).resolve().parent.parent


def hooks() -> str:
    rows = ["| feature | hooked | seen | verl |", "| --- | --- | --- | --- |"]
    rows += [f"| {hook.feature} | `{hook.path}` | {hook.seen} | {hook.versions} |" for hook in HOOKS]
    return "\n".join(rows)


def settings() -> str:
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for item in fields(Settings):
        default = f"`{item.default}`" if item.default != "" else "–"
        rows.append(f"| `VERL_OTEL_{item.name.upper()}` | {default} | {item.metadata['doc']} |")
    return "\n".join(rows)


# (file, name of the marked part, its content)
PARTS = (
    ("docs/hooks.md", "hooks", hooks),
    ("docs/settings.md", "settings", settings),
)


def replaced(text: str, name: str, content: str) -> str:
    start, end = f"<!-- {name}: made by scripts/generate_docs.py -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"no part {name!r} between {start!r} and {end!r}")
    return f"{before}{start}\n{content}\n{end}{after}"


def main() -> int:
    stale = []
    for name, part, content in PARTS:
        path = ROOT / name
        old = path.read_text()
        new = replaced(old, part, content())
        if new != old:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(new)
    if stale and "--check" in sys.argv:
        print(f"{', '.join(stale)}: not what the code says; run `make docs`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
