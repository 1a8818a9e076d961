"""The tasks of a cluster, and what each of them holds: for workers that train together, and for parameter servers."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.pictures.style import BLUE, GREEN, GREY, LARGE, ORANGE, SMALL, YELLOW, arrow, box, canvas, label
from tfdist.cluster import ClusterConfig

TOGETHER = {"worker": ("host0:2222", "host1:2222")}
APART = {"chief": ("host0:2222",), "worker": ("host1:2222", "host2:2222"), "ps": ("host3:2222",)}


def data() -> dict[str, Any]:
    """Returns the tasks of both clusters, and what ClusterConfig says of each."""

    def task(jobs: dict[str, tuple[str, ...]], job: str, index: int) -> list[str]:
        config = ClusterConfig(jobs=jobs, task_type=job, task_index=index)
        roles = [name for name, is_so in (("chief", config.is_chief), ("coordinator", config.is_coordinator)) if is_so]
        return [config.task_name, config.address or "", *roles]

    return {
        "multi_worker_mirrored": [task(TOGETHER, "worker", index) for index in range(2)],
        "parameter_server": [task(APART, job, index) for job in APART for index in range(len(APART[job]))],
        "devices of each worker": 2,
    }


def draw(data: dict[str, Any]) -> Figure:
    """Draws the two clusters beside each other.

    Args:
        data: what `data` has returned.
    """
    figure, axes = canvas(9.6, 4.6)
    label(axes, 2, 44, "multi_worker_mirrored", weight="bold", fontsize=LARGE)
    label(axes, 2, 41.6, "every replica holds all variables; all make each step together", fontsize=SMALL)
    for number, (name, address, *roles) in enumerate(data["multi_worker_mirrored"]):
        x = 2 + 22.5 * number
        title = f"{name}{', the chief' if 'chief' in roles else ''}"
        _process(axes, x, 11, 20, 28, title, address)
        for device in range(data["devices of each worker"]):
            replica = number * data["devices of each worker"] + device
            box(axes, x + 1 + 9.2 * device, 17, 8.8, 15.5, face=BLUE)
            label(axes, x + 5.4 + 9.2 * device, 30.6, f"replica {replica}", ha="center", weight="bold", fontsize=SMALL)
            box(axes, x + 1.7 + 9.2 * device, 23.6, 7.4, 4.6, "all\nvariables", size=8.0, face=GREEN)
            box(axes, x + 1.7 + 9.2 * device, 18, 7.4, 4.6, "a quarter\nof the rows", size=8.0, face=YELLOW)
        box(axes, x + 1, 12, 18, 3.8, "one input pipeline", size=SMALL, face=GREY)
    arrow(axes, (22, 26), (24.5, 26), arrowstyle="<|-|>")
    label(axes, 23.2, 9, "sums of gradients", ha="center", fontsize=SMALL)
    arrow(axes, (23.2, 10), (23.2, 25.6), arrowstyle="-", linestyle=":")
    box(axes, 11, 1.2, 24.4, 5.4, "evaluator (optional), outside the\ncluster: reads snapshots", size=SMALL, style="--")

    label(axes, 51, 44, "parameter_server", weight="bold", fontsize=LARGE)
    label(axes, 51, 41.6, "the ps hold the variables; workers make steps at any time", fontsize=SMALL)
    (chief, chief_address, *_), first, second, (ps, ps_address, *_) = data["parameter_server"]
    _process(axes, 51, 27, 17.5, 12, f"{chief}, the chief", chief_address)
    box(axes, 52, 28, 15.5, 5.6, "coordinator: fit runs\nhere, trains nothing", size=SMALL, face=ORANGE)
    _process(axes, 76, 27, 17.5, 12, ps, ps_address)
    box(axes, 77, 28, 15.5, 5.6, "all variables", size=SMALL, face=GREEN)
    for number, (name, address, *_) in enumerate((first, second)):
        x = 51 + 25 * number
        _process(axes, x, 1.5, 17.5, 14.5, name, address)
        box(axes, x + 1, 6.6, 15.5, 3.8, "steps", size=SMALL, face=BLUE)
        box(axes, x + 1, 2.4, 15.5, 3.6, "one input pipeline", size=SMALL, face=GREY)
    arrow(axes, (57, 26.6), (57, 16.4))
    arrow(axes, (63, 26.6), (78, 16.4))
    arrow(axes, (66.5, 16.4), (79.5, 26.6), arrowstyle="<|-|>", linestyle="--")
    arrow(axes, (87.5, 16.4), (87.5, 26.6), arrowstyle="<|-|>", linestyle="--")
    label(axes, 50.6, 21.5, "orders", fontsize=SMALL, ha="left")
    label(axes, 88.2, 21.5, "variables", fontsize=SMALL)
    return figure


def _process(axes: Axes, x: float, y: float, width: float, height: float, title: str, address: str) -> None:
    box(axes, x, y, width, height)
    label(axes, x + width / 2, y + height - 1.8, title, ha="center", weight="bold")
    label(axes, x + width / 2, y + height - 4, address, ha="center", fontsize=SMALL, family="DejaVu Sans Mono")
