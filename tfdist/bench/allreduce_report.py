"""Reports the results of `tfdist bench allreduce`: JSON, a plot, a table and a recommended size of packs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.bench.sizes import size_as_text

# Times within 2% of the best are noise: the recommendation treats them as equal.
_EQUALLY_FAST = 1.02
_COLUMNS = (
    "size",
    "algorithm",
    "method",
    "pack",
    "ms",
    "algbw MB/s",
    "busbw MB/s",
    "busbw / TCP",
    "wire bytes",
    "wire / ring",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """The results of one run of the benchmark.

    Attributes:
        replicas: number of replicas of all workers.
        usable: bytes per second of plain TCP streams around the ring of workers; None in one process.
        rows: a row of `Bench.measure` for each size, algorithm and method.
        packs: a row of `Bench.measure` for each size of packs, with the largest size of tensors.
    """

    replicas: int
    usable: float | None
    rows: list[dict[str, Any]]
    packs: list[dict[str, Any]]


def report(results: Results, folder: Path) -> None:
    """Writes allreduce.json and allreduce.png, and prints the table and the recommended size of packs.

    Args:
        results: the results of the benchmark.
        folder: folder for the two files, created if missing.
    """
    from rich.console import Console

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "allreduce.json").write_text(json.dumps(dataclasses.asdict(results), indent=1))
    plot(results.rows, results.usable, folder / "allreduce.png")
    Console(width=120).print(table([*results.rows, *results.packs], results.usable))
    if results.usable:
        print(f"plain TCP around the ring of workers: {results.usable / 1e6:.1f} MB/s")
    if results.packs:
        size = recommend(results.packs)
        print(f"recommended: bytes_per_pack={size} ({size_as_text(size)})")


def recommend(rows: Sequence[dict[str, Any]]) -> int:
    """Returns the recommended size of a pack in bytes: the smallest size that is as fast as the fastest size.

    A small size is better, because small packs can be sent earlier during backpropagation.

    Args:
        rows: rows for one size of tensors, each with its `bytes_per_pack` and `seconds`.

    Example:
        >>> from tfdist.bench.allreduce_report import recommend
        >>> recommend([{"bytes_per_pack": 1, "seconds": 2.0}, {"bytes_per_pack": 4, "seconds": 1.0}])
        4
    """
    best = min(row["seconds"] for row in rows)
    return min(int(row["bytes_per_pack"]) for row in rows if row["seconds"] <= _EQUALLY_FAST * best)


def table(rows: Sequence[dict[str, Any]], usable: float | None) -> Any:
    """Returns the rows as a rich.table.Table.

    Args:
        rows: rows of `Bench.measure`.
        usable: bytes per second of plain TCP streams, or None.
    """
    import rich.box
    from rich.table import Table

    result = Table(box=rich.box.SIMPLE_HEAD)
    for title in _COLUMNS:
        result.add_column(title, justify="left" if title in ("algorithm", "method") else "right", no_wrap=True)
    for row in rows:
        wire = row["wire"]
        result.add_row(
            size_as_text(row["size"]),
            row["algorithm"],
            row["method"],
            size_as_text(row["bytes_per_pack"]) if row["bytes_per_pack"] else "",
            f"{1000 * row['seconds']:.2f}",
            f"{row['algbw'] / 1e6:.1f}",
            f"{row['busbw'] / 1e6:.1f}",
            f"{row['busbw'] / usable:.2f}" if usable else "",
            f"{wire:,.0f}" if wire is not None else "",
            f"{wire / row['ring']:.3f}" if wire is not None and row["ring"] else "",
        )
    return result


def plot(rows: Sequence[dict[str, Any]], usable: float | None, path: Path) -> None:
    """Draws the bus bandwidth of every algorithm and method over the size.

    Args:
        rows: rows of `Bench.measure`.
        usable: bytes per second of plain TCP streams, drawn as a horizontal line, or None.
        path: file name of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    figure, axis = pyplot.subplots(figsize=(7, 4.5))
    for algorithm, method in dict.fromkeys((row["algorithm"], row["method"]) for row in rows):
        points = [
            (row["size"], row["busbw"] / 1e6)
            for row in rows
            if (row["algorithm"], row["method"]) == (algorithm, method)
        ]
        label = "tfdist" if method == "none" else method
        style = ("-", "--", ":")[algorithms.index(algorithm) % 3]
        label = label if len(algorithms) == 1 else f"{label}, {algorithm}"
        axis.plot(*zip(*points, strict=True), marker="o", linestyle=style, label=label)
    if usable:
        axis.axhline(usable / 1e6, color="k", linestyle="--", label="plain TCP")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    sizes = sorted({row["size"] for row in rows})
    axis.set_xticks(sizes, [size_as_text(size) for size in sizes])
    axis.set_xlabel("bytes of float32")
    axis.set_ylabel("busbw (MB/s)")
    axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
