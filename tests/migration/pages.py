"""The generated parts of the migration guides: the changed lines of programs, and the numbers of stock Keras."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.generated import between_marks
from tests.migration.changes import shown, table
from tests.migration.stock_cells import CENTRAL, ROWS, documented, keras_2_15, stock
from tests.processes import ROOT

PROGRAM_OF = {"from_horovod.md": "horovod", "from_tf_distribute.md": "tf_distribute", "from_addons.md": "addons"}
PAGES = tuple(ROOT / "docs" / name for name in PROGRAM_OF)
KERAS_2_15 = "Keras 2.15"
KERASES = ("Keras 3.15", "tf_keras 2.21", KERAS_2_15)
MIRRORED, WORKERS, CENTRAL_STORAGE = "Mirrored 2", "MultiWorkerMirrored 2x1", "CentralStorage 2"
# The rows of the two tables, and the topologies that each cell is about.
TABLES = ((ROWS, (MIRRORED, WORKERS)), (CENTRAL, (CENTRAL_STORAGE,)))


def cells_of(keras: str, title: str, topologies: Sequence[str]) -> list[str]:
    """Returns the cells of a row for some topologies, such as "wrong 0.56 → pass"; keras is the start of its name."""
    if keras == KERAS_2_15:
        return [keras_2_15()[topology, title] for topology in topologies]
    (cells,) = (cells for name, cells in documented().items() if name.startswith(keras))
    return [cells[topology, title] for topology in topologies]


def on_stock(cells: Sequence[str]) -> str:
    """Returns the results of stock Keras on several topologies as one text.

    Example:
        >>> on_stock(["wrong 0.56 → pass", "raises → pass"]), on_stock(["wrong → pass", "wrong → pass"])
        ('wrong 0.56 / raises', 'wrong')
    """
    return " / ".join(dict.fromkeys(map(stock, cells)))


def numbers() -> str:
    """Returns the tables of the numbers of stock Keras that differ from those of one device."""
    heads = ("row of [conformance](conformance.md)", "on central_storage")
    return "\n\n".join(
        table([head, *KERASES], [[title, *(on_stock(cells_of(k, title, where)) for k in KERASES)] for title in rows])
        for head, (rows, where) in zip(heads, TABLES, strict=True)
    )


def written(path: Path, text: str) -> str:
    """Returns the text of a page with new generated parts."""
    text = between_marks(text, "program", shown(PROGRAM_OF[path.name]))
    if path.name == "from_tf_distribute.md":
        text = between_marks(text, "numbers", numbers())
    return text
