"""The table of docs/conformance.md for Keras 3 as a heat map: stock Keras above, Keras with tfdist below."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.pictures.style import INK, LARGE, LINE, MIDDLE_BLUE, PAPER, SMALL, STRONG_ORANGE, YELLOW, box, canvas, label
from tests.conformance.document import tables

# Letter, face, mark, and colour of the mark of each result. Pass is light and has no mark.
KINDS = {
    "pass": ("p", "#dcefe0", "", INK),
    "wrong": ("w", STRONG_ORANGE, "x", PAPER),
    "raises": ("r", MIDDLE_BLUE, "-", INK),
    "hangs": ("h", INK, "h", PAPER),
    "refuses": ("f", YELLOW, "o", INK),
    "n/a": ("n", PAPER, "·", INK),
}
MEANINGS = {
    "pass": "the numbers of one device",
    "wrong": "other numbers, no error",
    "raises": "ends with an error",
    "hangs": "does not end",
    "refuses": "refused in one sentence",
    "n/a": "does not apply",
}
_DOCUMENT = Path(__file__).parents[1] / "conformance.md"


def data() -> dict[str, Any]:
    """Returns the results as one letter for each feature, by topology, on stock Keras and with tfdist."""
    table = tables(_DOCUMENT.read_text())[0]
    letters = {
        flavour: {
            topology: "".join(KINDS[row.cells[topology][number]][0] for row in table.rows)
            for topology in table.topologies
        }
        for number, flavour in enumerate(("stock Keras and tf.distribute", "with tfdist"))
    }
    groups: dict[str, int] = {}
    for row in table.rows:
        groups[row.group] = groups.get(row.group, 0) + 1
    return {"title": table.title, "groups": groups, "results": letters}


def draw(data: dict[str, Any]) -> Figure:
    """Draws one column for each feature, and one row for each topology.

    Args:
        data: what `data` has returned.
    """
    figure, axes = canvas(9.6, 5.9)
    kinds = {letter: (name, face, mark, color) for name, (letter, face, mark, color) in KINDS.items()}
    columns = sum(data["groups"].values())
    left, width, height = 19.5, 73.0 / columns, 2.35
    label(axes, 1, 57.2, data["title"], weight="bold", fontsize=LARGE)
    label(axes, 1, 54.9, f"{columns} features; one column each", fontsize=SMALL)
    for top, (flavour, results) in zip((43.0, 22.5), data["results"].items(), strict=True):
        _panel(axes, data["groups"], results, kinds, left=left, top=top, width=width, height=height)
        right = sum(row.count("p") for row in results.values())
        of = sum(len(row) - row.count("n") for row in results.values())
        label(axes, 1, top + 1.4, f"{flavour}: {right} of {of} right", weight="bold")
    x = left
    for name, count in data["groups"].items():
        middle = x + count * width / 2
        label(
            axes, middle - 0.4, 46.4, name, fontsize=SMALL, ha="left", va="bottom", rotation=38, rotation_mode="anchor"
        )
        x += count * width
    shown = {letter for results in data["results"].values() for row in results.values() for letter in row}
    x = 1.0
    for letter, (name, face, mark, color) in kinds.items():
        if letter in shown:
            box(axes, x, 1.6, 1.6, height, mark, face=face, color=color, size=SMALL)
            label(axes, x + 2.2, 2.8, f"{name}: {MEANINGS[name]}", fontsize=7.6)
            x += 4.2 + 0.98 * len(f"{name}: {MEANINGS[name]}") * 0.56
    return figure


def _panel(
    axes: Axes,
    groups: dict[str, int],
    results: dict[str, str],
    kinds: dict[str, tuple[str, str, str, str]],
    *,
    left: float,
    top: float,
    width: float,
    height: float,
) -> None:
    for number, (topology, row) in enumerate(results.items()):
        y = top - (number + 1) * height
        label(axes, left - 0.6, y + height / 2, topology, ha="right", fontsize=7.6)
        for run in re.finditer(r"(.)\1*", row):
            _, face, mark, color = kinds[run[1]]
            begin, end = run.span()
            box(axes, left + begin * width, y, (end - begin) * width, height, face=face, edge=PAPER)
            for column in range(begin, end if mark else begin):
                middle = left + (column + 0.5) * width
                label(axes, middle, y + height / 2, mark, ha="center", fontsize=7.0, color=color)
    bottom = top - len(results) * height
    for column in range(1, sum(groups.values())):
        axes.plot([left + column * width] * 2, [bottom, top], color=PAPER, linewidth=0.6)
    x = left
    for count in [*groups.values(), 0]:
        axes.plot([x, x], [bottom, top + 0.4], color=LINE, linewidth=0.8)
        x += count * width
