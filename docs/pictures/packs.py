"""Packs that are sent during backpropagation, beside one pack after it: a schematic of time with real packs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.pictures.style import BLUE, GREEN, GREY, LARGE, ORANGE, SMALL, STRONG_ORANGE, arrow, box, canvas, label
from tfdist.allreduce.packs import plan_packs

# Kernels of dense layers: inputs and outputs.
LAYERS = ((384, 512), (512, 448), (448, 576), (576, 176))
BYTES_PER_PACK = 1 << 20
_ITEM = 4
_ROOT = Path(__file__).parents[2]


def data() -> dict[str, Any]:
    """Returns the packs of `plan_packs` for four layers, and the number of streams that send them."""
    sizes = [inputs * outputs for inputs, outputs in LAYERS]
    packs = plan_packs(sizes, ["float32"] * len(sizes), bytes_per_pack=BYTES_PER_PACK, itemsizes=[_ITEM] * len(sizes))
    # Read, since importing the file would import TensorFlow.
    streams = re.search(r"^STREAMS = (\d+)$", (_ROOT / "tfdist/allreduce/streams.py").read_text(), re.M)
    assert streams is not None
    return {
        "layers": [list(layer) for layer in LAYERS],
        "bytes per pack": BYTES_PER_PACK,
        "streams": int(streams[1]),
        "packs": [[[part.index, part.start, part.stop] for part in pack.parts] for pack in packs],
    }


def draw(data: dict[str, Any]) -> Figure:
    """Draws backpropagation, the packs, and one pack, on one axis of time.

    Args:
        data: what `data` has returned.
    """
    figure, axes = canvas(9.6, 4.8)
    sizes = [inputs * outputs for inputs, outputs in data["layers"]]
    left, unit, sending = 19.0, 36.0 / sum(sizes), 39.0 / sum(sizes)
    label(axes, 2, 46.0, "Schematic of time, with the packs that tfdist plans", weight="bold", fontsize=LARGE)
    what = "Computing and sending take time in proportion to the number of elements."
    label(axes, 2, 43.2, what, fontsize=SMALL)
    faces = (BLUE, ORANGE, GREEN, GREY)
    done, x = {}, left
    label(axes, 2, 39.0, "backpropagation", fontsize=SMALL)
    for index in reversed(range(len(sizes))):
        box(axes, x, 36.2, sizes[index] * unit, 5.6, f"layer {index}", face=faces[index], size=SMALL)
        x += sizes[index] * unit
        done[index] = x
    arrow(axes, (x, 42.0), (x, 1.6), arrowstyle="-", linestyle=":")
    label(axes, x + 0.8, 34.6, "end of backpropagation", fontsize=SMALL)

    label(axes, 2, 32.4, f"DistributedOptimizer: packs of {data['bytes per pack'] >> 20} MiB", weight="bold")
    y, last = 27.0, 0.0
    for number, parts in enumerate(data["packs"]):
        begin = max(done[index] for index, *_ in parts)
        x = begin
        label(axes, 2, y + 2, f"pack {number}, stream {number % data['streams']}", fontsize=SMALL)
        for index, start, stop in parts:
            width = (stop - start) * sending
            whole = (stop - start) / sizes[index]
            part = f"layer {index}" if whole == 1 else f"{whole:.0%} of\nlayer {index}" if width > 4 else f"{whole:.0%}"
            box(axes, x, y, width, 4, part, face=faces[index], size=7.5)
            x += width
        last = max(last, x)
        y -= 4.8
    _update(axes, last, y + 4.8, beside=True)
    label(axes, 2, 8.6, "one pack", weight="bold")
    label(axes, 2, 5.8, "after backpropagation", fontsize=SMALL)
    x = done[0]
    for index in range(len(sizes)):
        box(axes, x, 4.8, sizes[index] * sending, 4, f"layer {index}", face=faces[index], size=SMALL)
        x += sizes[index] * sending
    _update(axes, x, 4.8, beside=False)
    return figure


def _update(axes: Axes, x: float, y: float, *, beside: bool) -> None:
    """Marks the end of the last sum."""
    axes.plot([x, x], [y - 0.8, y + 4.8], color=STRONG_ORANGE, linewidth=2.2)
    place = {"x": x + 0.8, "y": y + 2, "ha": "left"} if beside else {"x": x, "y": y + 5.8, "ha": "right"}
    label(axes, text="update of the variables", fontsize=SMALL, color=STRONG_ORANGE, **place)
