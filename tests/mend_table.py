"""Writes the table of mends in docs/keras.md from the registry: python -m tests.mend_table --write docs/keras.md."""

from __future__ import annotations

from tests.generated import between_marks, main
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.registry import MENDS
from tfdist.keras_compat.tested import KERAS

HEAD = """\
| name | defect | Keras | strategies | upstream issue | rows of [conformance](conformance.md) |
| --- | --- | --- | --- | --- | --- |"""


def kerases(mend: Mend) -> str:
    """Returns the versions of Keras for which a mend is made."""
    names = {"keras3": "", "tf_keras": "tf_keras ", "keras2": ""}
    return ", ".join(name + _span(mend, keras) for keras, name in names.items() if keras in mend.keras)


def _span(mend: Mend, keras: str) -> str:
    """Returns the tested releases of a Keras for which a mend is made, such as "3.8 to 3.15"."""
    first, last = (max(mend.versions[0], KERAS[keras][0]), min(mend.versions[1], KERAS[keras][1]))
    return " to ".join(dict.fromkeys(f"{major}.{minor}" for major, minor in (first, last)))


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
