"""Plots the accuracy on the test set over the seconds of training, for the contenders of slow_network.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

Curve = list[tuple[float, float]]


def plot(curves: dict[str, Curve], path: Path, *, title: str, target: float) -> None:
    """Writes a plot.

    Args:
        curves: seconds and accuracy, by the name of the contender.
        path: the file, such as averaging.png.
        title: what was measured.
        target: an accuracy that is marked.
    """
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    colors = matplotlib.colormaps["tab20"].colors
    # The legend lists the contenders in the order in which they reach the end of the training.
    for number, (name, curve) in enumerate(sorted(curves.items(), key=lambda item: item[1][-1][0])):
        seconds, accuracies = zip(*curve, strict=True)
        style = "--" if number >= len(colors) // 2 else "-"
        axes.plot(seconds, accuracies, style, color=colors[number % len(colors)], label=name, linewidth=1.5)
    axes.axhline(target, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    lowest = min(max(accuracy for _, accuracy in curve) for curve in curves.values())
    axes.set_ylim(min(lowest, target) - 0.06, max(a for curve in curves.values() for _, a in curve) + 0.005)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("accuracy on the test set")
    axes.set_title(title)
    axes.grid(which="both", linewidth=0.3)
    figure.legend(loc="outside right center", fontsize="small", frameon=False)
    figure.savefig(path, dpi=110)
