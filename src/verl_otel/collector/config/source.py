"""YAML text to a mapping, strictly: a key given twice is an error, and ``${env:NAME}`` is filled in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_otel.collector.config.keys import Problems

# `$$` stands for one `$`, as in the official Collector.
_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)\}")
_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class _Loader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            # A merge key (`<<`) may stand beside keys that override what it brings.
            if key_node.value in seen and key_node.tag != "tag:yaml.org,2002:merge":
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: key {key_node.value!r} is given twice")
            seen.add(key_node.value)
        self.flatten_mapping(node)
        return {
            self.construct_object(key, deep=True): self.construct_object(value, deep=True) for key, value in node.value
        }


def parse(text: str, name: str, problems: Problems) -> Any:
    """The content of ``text``; ``name`` is what errors call it."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, TypeError) as error:
        problems.add(name, f"not YAML: {' '.join(str(error).split())}")
        return None


def read(file: Path, problems: Problems) -> Any:
    """The content of ``file``."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.add(str(file), f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    return parse(text, str(file), problems)


def with_env(node: Any, path: str, problems: Problems) -> Any:
    """``node`` with every ``${env:NAME}`` and ``${env:NAME:-default}`` in its values replaced."""
    if isinstance(node, Mapping):
        return {key: with_env(value, f"{path}.{key}" if path else str(key), problems) for key, value in node.items()}
    if isinstance(node, list):
        return [with_env(value, f"{path}[{index}]", problems) for index, value in enumerate(node)]
    if not isinstance(node, str):
        return node

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        reference = _ENV.fullmatch(match[1])
        if reference is None:
            problems.add(path, f"{match[0]!r}: write ${{env:NAME}}, or $${{…}} for the text itself")
            return ""
        value = os.environ.get(reference[1], reference[2])
        if value is None:
            problems.add(
                path, f"the environment has no {reference[1]}; set it, or write ${{env:{reference[1]}:-default}}"
            )
            return ""
        return value

    return _REFERENCE.sub(replace, node)
