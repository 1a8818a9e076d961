"""Writes the table of mends in docs/keras.md from the registry: python -m tests.mend_table --write docs/keras.md."""

from __future__ import annotations

from tests.generated import between_marks, main
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.registry import MENDS

HEAD = """\
| name | defect | Keras | strategies | upstream issue | rows of [conformance](conformance.md) |
| --- | --- | --- | --- | --- | --- |"""


def kerases(mend: Mend) -> str:
    """Returns the versions of Keras for which a mend is made."""
    named = {"keras3": "3.15", "tf_keras": "tf_keras 2.21", "keras2": "2.15"}
    return ", ".join(named[keras] for keras in named if keras in mend.keras)


def row(mend: Mend) -> str:
    """Returns the line of the table for a mend."""
    strategies = "all" if "one_device" in mend.strategies and "tpu" in mend.strategies else ", ".join(mend.strategies)
    rows = "; ".join(mend.rows) or f"none: {mend.without_row}"
    return f"| `{mend.name}` | {mend.defect} | {kerases(mend)} | {strategies} | {mend.issue} | {rows} |"


def table() -> str:
    """Returns the table of all mends."""
    return "\n".join([HEAD, *map(row, MENDS)])


def written(text: str) -> str:
    """Returns the text of the document with a new table between its two marks."""
    return between_marks(text, "mends", table())


if __name__ == "__main__":
    main(prog="python -m tests.mend_table", description=__doc__, mark="mends", part=table)
