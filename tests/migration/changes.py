"""Counts and shows the lines of a program that change when it is migrated to tfdist."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence

from tests.processes import ROOT

PROGRAMS = ROOT / "docs" / "migration"
MOST_CHANGED = 10


@dataclasses.dataclass(frozen=True)
class Changes:
    """The differences between two versions of a program.

    Attributes:
        diff: all lines of both versions, as difflib.unified_diff writes them: each begins with "+", "-" or a space.
    """

    diff: tuple[str, ...]

    @property
    def changed(self) -> int:
        """Number of lines of the new version that are not in the old version. Comments count, empty lines do not."""
        return self._count("+")

    @property
    def removed(self) -> int:
        """Number of lines of the old version that are not in the new version. Comments count, empty lines do not."""
        return self._count("-")

    def _count(self, sign: str) -> int:
        return sum(line.startswith(sign) and bool(line[1:].strip()) for line in self.diff)


def changes(before: str, after: str) -> Changes:
    """Compares two texts.

    Example:
        >>> found = changes("import horovod\\n\\nprint(1)\\n", "import tfdist\\n\\nprint(1)\\nprint(2)\\n")
        >>> found.changed, found.removed
        (2, 1)
    """
    old, new = before.splitlines(), after.splitlines()
    lines = list(difflib.unified_diff(old, new, n=len(old) + len(new), lineterm=""))
    # The first three lines name the files and the position.
    return Changes(tuple(lines[3:]))


def of_program(name: str) -> Changes:
    """Returns the changes of a program in docs/migration, such as "horovod"."""
    return changes(*((PROGRAMS / name / f"{version}.py").read_text() for version in ("before", "after")))


def shown(name: str) -> str:
    """Returns the part of a page that shows and counts the changes of a program."""
    found = of_program(name)
    body = "\n".join(line.rstrip() for line in found.diff)
    folder = f"migration/{name}"
    return (
        f"{found.changed} lines change, and {found.removed} lines are removed,\n"
        f"from [before.py]({folder}/before.py) to [after.py]({folder}/after.py):\n\n```diff\n{body}\n```"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))
