"""YAML as Kubernetes reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

# Words such as `1e3`, `yes` and `0x1f` are strings for PyYAML, and numbers or booleans for the YAML of Kubernetes.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")
_NOT_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_STRINGS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def manifest(*documents: Mapping[str, Any], comment: str) -> str:
    """Returns documents as YAML.

    Args:
        documents: one object of Kubernetes each, or the request of a service.
        comment: the lines above them.

    Example:
        >>> print(manifest({"kind": "Job", "args": ["--rate", "1e3"]}, comment="Example."))
        # Example.
        kind: Job
        args:
          - "--rate"
          - "1e3"
    """
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    texts = (yaml.dump(dict(one), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True) for one in documents)
    return lines + "---\n".join(texts)
