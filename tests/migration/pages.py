"""The generated parts of the migration guides: the changed lines of programs, and the numbers of stock Keras."""

from __future__ import annotations

from pathlib import Path

from tests.migration.changes import between_marks, shown, table
from tests.migration.stock_cells import CENTRAL, ROWS, Row, documented, keras_2_15, stock
from tests.processes import ROOT

PROGRAM_OF = {"from_horovod.md": "horovod", "from_tf_distribute.md": "tf_distribute", "from_addons.md": "addons"}
PAGES = tuple(ROOT / "docs" / name for name in PROGRAM_OF)
MIRRORED, WORKERS, CENTRAL_STORAGE = "Mirrored 2", "MultiWorkerMirrored 2x1", "CentralStorage 2"


def stock_cells(keras: str, row: Row, topologies: tuple[str, ...]) -> list[str]:
    """Returns the cells of a row on stock Keras for some topologies; keras is the beginning of its name."""
    if keras == "2.15":
        return [keras_2_15()[1][topology, row.title] for topology in topologies]
    (cells,) = (cells for name, cells in documented().items() if name.startswith(keras))
    return [stock(cells[topology, row.title]) for topology in topologies]


def numbers() -> str:
    """Returns the tables of the numbers of stock Keras that differ from those of one device."""
    kerases = ("Keras 3.15", "tf_keras 2.21", "2.15")
    both = (MIRRORED, WORKERS)
    main = table(
        ["row of [conformance](conformance.md)", *(f"{k if k[0] != '2' else 'Keras 2.15'}" for k in kerases), "with tfdist"],
        [[r.title, *(" / ".join(stock_cells(k, r, both)) for k in kerases), r.use] for r in ROWS],
    )
    central = table(
        ["on central_storage", "Keras 3.15", "tf_keras 2.21", "Keras 2.15"],
        [[r.title, *(stock_cells(k, r, (CENTRAL_STORAGE,))[0] for k in kerases)] for r in CENTRAL],
    )
    return f"{main}\n\n{central}"


def written(path: Path, text: str) -> str:
    """Returns the text of a page with new generated parts."""
    text = between_marks(text, "program", shown(PROGRAM_OF[path.name]))
    if path.name == "from_tf_distribute.md":
        text = between_marks(text, "numbers", numbers())
    return text
