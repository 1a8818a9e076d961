"""The way of one step of `fit` on two replicas, from the global batch to the updated variables."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from docs.pictures.style import BLUE, GREEN, GREY, ORANGE, SMALL, YELLOW, arrow, box, canvas, label

# What happens, on which side (each replica, or all replicas together), and the function that does it.
WAY = (
    ("forward, loss: the mean over its own rows", "replica", "train_step of the model"),
    ("gradients of this loss", "replica", "GradientTape"),
    ("times its share of the rows", "replica", "tfdist/keras_compat/losses/weighting.py: weighted_gradients"),
    (
        "sum over replicas: the gradient of the global batch",
        "all",
        "tfdist/allreduce/aggregation.py: sum_gradients",
    ),
    ("unscale, check for infinities, clip", "all", "BaseOptimizer.apply of Keras"),
    ("the same update of the same variables", "replica", "update_step of the optimizer"),
)
ROWS = (3, 2)


def data() -> dict[str, Any]:
    """Returns the stations, and the share of the rows of each replica."""
    return {"way": [list(one) for one in WAY], "rows": list(ROWS), "shares": [f"{rows}/{sum(ROWS)}" for rows in ROWS]}


def draw(data: dict[str, Any]) -> Figure:
    """Draws the stations from top to bottom, the replicas beside each other.

    Args:
        data: what `data` has returned.
    """
    rows, shares, way = data["rows"], data["shares"], data["way"]
    figure, axes = canvas(9.6, 5.75)
    left, width, gap = 2, 27.5, 2
    whole = 2 * width + gap
    box(axes, left, 51.7, whole, 4.6, f"global batch of {sum(rows)} rows", face=GREY, weight="bold")
    top = 49
    for replica, count in enumerate(rows):
        x = left + replica * (width + gap)
        arrow(axes, (x + width / 2, 51.7), (x + width / 2, top))
        box(axes, x, top - 4.6, width, 4.6, f"replica {replica}: {count} rows", face=YELLOW, weight="bold")
    label(axes, left + whole + 2, 54, "An uneven batch: the last one of an epoch.", fontsize=SMALL)
    faces = {"all": ORANGE, "replica": BLUE}
    y = top - 4.6
    for number, (what, side, where) in enumerate(way):
        face = GREEN if number == len(way) - 1 else faces[side]
        for replica, share in enumerate(shares):
            x = left + replica * (width + gap)
            arrow(axes, (x + width / 2, y), (x + width / 2, y - 2.4))
            if side == "replica":
                text = what.replace("its share of the rows", f"its share of the rows: {share}")
                box(axes, x, y - 7, width, 4.6, text.replace(", loss:", ", loss:\n"), face=face, size=SMALL)
        if side == "all":
            box(axes, left, y - 7, whole, 4.6, what, face=face, size=SMALL)
        path, _, function = where.partition(": ")
        lines = f"{path}:\n{function}" if function else where
        mono = {"family": "DejaVu Sans Mono", "fontsize": 7.8} if function else {"fontsize": SMALL}
        label(axes, left + whole + 2, y - 4.7, lines, **mono)
        y -= 7
    return figure
