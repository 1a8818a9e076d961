"""What all pictures share: colours, boxes, arrows, and files that are the same in every run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Readable with every kind of colour vision, and in grey: each is also told apart by a text or a mark.
INK, PAPER, GREY, LINE = "#1b1b1b", "#ffffff", "#e8e8e8", "#6b6b6b"
BLUE, ORANGE, GREEN, YELLOW = "#cfe3f5", "#f8d9b8", "#d3ebd0", "#fbf0b0"
MIDDLE_BLUE, STRONG_ORANGE = "#8ab8e2", "#c8501e"
SMALL, NORMAL, LARGE = 9.0, 10.0, 11.5

_SETTINGS = {
    # Letters as outlines, since a viewer may not have the font. The salt gives the same names in every run.
    "svg.fonttype": "path",
    "svg.hashsalt": "tfdist",
    "font.family": "DejaVu Sans",
    "font.size": NORMAL,
    "text.color": INK,
    "hatch.linewidth": 0.7,
}


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Returns a figure and its axes, whose units are a tenth of an inch, from the lower left corner.

    Args:
        width: inches.
        height: inches.
    """
    matplotlib.rcParams.update(_SETTINGS)
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10 * width), ylim=(0, 10 * height))
    axes.axis("off")
    return figure, axes


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str = "",
    *,
    face: str = PAPER,
    edge: str = LINE,
    **more: Any,
) -> None:
    """Draws a box with a text in its middle.

    Args:
        axes: axes of `canvas`.
        x: left edge.
        y: lower edge.
        width: width.
        height: height.
        text: the text.
        face: colour of the area.
        edge: colour of the edge.
        **more: `size`, `weight`, `color` of the text, and `hatch`, `style` of the box.
    """
    axes.add_patch(
        matplotlib.patches.Rectangle(
            (x, y),
            width,
            height,
            facecolor=face,
            edgecolor=edge,
            linewidth=0.9,
            hatch=more.get("hatch"),
            linestyle=more.get("style", "-"),
        )
    )
    if text:
        axes.text(
            x + width / 2,
            y + height / 2,
            text,
            ha="center",
            va="center",
            fontsize=more.get("size", NORMAL),
            weight=more.get("weight", "normal"),
            color=more.get("color", INK),
            linespacing=1.35,
        )


def label(axes: Axes, x: float, y: float, text: str, **more: Any) -> None:
    """Writes a text, from the left unless `ha` says otherwise.

    Args:
        axes: axes of `canvas`.
        x: place of the text.
        y: middle of the text.
        text: the text.
        **more: options of matplotlib.
    """
    axes.text(x, y, text, **{"ha": "left", "va": "center", "fontsize": NORMAL, "linespacing": 1.35, **more})


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **more: Any) -> None:
    """Draws an arrow.

    Args:
        axes: axes of `canvas`.
        start: where it begins.
        end: where its head is.
        **more: options of its line, such as `linestyle`.
    """
    style = {"arrowstyle": more.pop("arrowstyle", "-|>"), "color": LINE, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops={**style, **more})


def save(figure: Figure, path: Path, data: Any) -> None:
    """Writes an SVG file that has no date, and contains its data.

    Args:
        figure: the picture.
        path: the file.
        data: what was drawn, as JSON can hold it.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    # Without the version of matplotlib.
    figure.savefig(path, metadata={"Date": None, "Creator": None, "Description": text})
    # Some lines end with blanks, which git warns about.
    path.write_text(re.sub(r"[ \t]+$", "", path.read_text(), flags=re.M))


def data_in(path: Path) -> Any:
    """Returns the data that a picture was drawn from.

    Args:
        path: a file that `save` has written.
    """
    import html

    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(), re.S)
    return None if found is None else json.loads(html.unescape(found[1]))
