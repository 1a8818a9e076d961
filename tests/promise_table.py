"""Writes the table of docs/promise.md from docs/conformance.md.

python -m tests.promise_table --write docs/promise.md
"""

from __future__ import annotations

from tests.conformance.document import Table, tables
from tests.generated import between_marks, main
from tests.processes import ROOT

HEAD = """\
| versions | rows | cells | stock: right | stock: wrong, no error | stock: fails or refuses | tfdist: right | \
tfdist: refuses |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def row(table: Table) -> str:
    """Returns the line of one Keras. Cells that do not apply are not counted."""
    words = ("pass", "wrong", "raises", "hangs", "refuses")
    stock, tfdist = ({word: table.count(word, flavour=flavour) for word in words} for flavour in (0, 1))
    cells = sum(tfdist.values())
    assert tfdist["pass"] + tfdist["refuses"] == cells
    fails = stock["raises"] + stock["hangs"] + stock["refuses"]
    numbers = [len(table.rows), cells, stock["pass"], stock["wrong"], fails, tfdist["pass"], tfdist["refuses"]]
    return f"| {table.title} | {' | '.join(map(str, numbers))} |"


def table() -> str:
    """Returns the table of all versions of Keras."""
    return "\n".join([HEAD, *map(row, tables((ROOT / "docs" / "conformance.md").read_text()))])


def written(text: str) -> str:
    """Returns the text of the document with a new table between its two marks."""
    return between_marks(text, "results", table())


if __name__ == "__main__":
    main(prog="python -m tests.promise_table", description=__doc__, mark="results", part=table)
