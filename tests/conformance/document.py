"""Reads the tables of docs/conformance.md, which `python -m tests.conformance` has written."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        group: heading above the row, such as "data in".
        title: name of the feature.
        cells: by topology, the result on stock Keras and with tfdist, without the size of an error.
    """

    group: str
    title: str
    cells: dict[str, tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """The results of one Keras.

    Attributes:
        title: versions of Keras, TensorFlow and Python.
        topologies: the headings of the columns.
        rows: the rows.
    """

    title: str
    topologies: tuple[str, ...]
    rows: tuple[Row, ...]

    def count(self, word: str, *, flavour: int) -> int:
        """Returns the number of cells with a result, on stock Keras (flavour 0) or with tfdist (1)."""
        return sum(cell[flavour] == word for row in self.rows for cell in row.cells.values())


def tables(text: str) -> list[Table]:
    """Returns the tables of the document, one for each Keras.

    Args:
        text: text of docs/conformance.md.
    """
    found = []
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        head = re.search(r"^\| \| (.*) \|$", body, re.M)
        if head is None:
            continue
        topologies, group, rows = tuple(head[1].split(" | ")), "", []
        for line in body[head.end() :].splitlines()[2:]:
            if not line.startswith("|"):
                break
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            if name.startswith("**"):
                group = name.strip("*")
            else:
                rows.append(Row(group, name, dict(zip(topologies, map(_both, cells), strict=True))))
        found.append(Table(title.strip(), topologies, tuple(rows)))
    return found


def _both(cell: str) -> tuple[str, str]:
    words = [word.split(" ")[0] for word in cell.split(" → ")]
    return words[0], words[-1]
