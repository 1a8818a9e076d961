"""Reports the results of `tfdist bench allreduce`: JSON, a plot, a table and recommended options."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.allreduce.options import AllReduceOptions
from tfdist.bench.sizes import size_as_text

# Times within 2% of the best are noise: the recommendation treats them as equal.
_EQUALLY_FAST = 1.02
# Enough for all columns, also if the output is no terminal.
_WIDTH = 160
_COLUMNS = (
    "size",
    "algorithm",
    "transport",
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
        rows: a row of `Bench.measure` for each size, algorithm, transport and method.
        packs: a row of `Bench.measure` for each transport and size of packs, with the largest size of tensors.
    """

    replicas: int
    usable: float | None
    rows: list[dict[str, Any]]
    packs: list[dict[str, Any]]


def report(results: Results, folder: Path) -> None:
    """Writes allreduce.json and allreduce.png, and prints the table and the recommended options.

    Args:
        results: the results of the benchmark.
        folder: folder for the two files, created if missing.
    """
    from rich.console import Console

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "allreduce.json").write_text(json.dumps(dataclasses.asdict(results), indent=1))
    plot(results.rows, results.usable, folder / "allreduce.png")
    Console(width=_WIDTH).print(table([*results.rows, *results.packs], results.usable))
    if results.usable:
        print(f"plain TCP around the ring of workers: {results.usable / 1e6:.1f} MB/s")
    if results.packs:
        options = recommend(results.packs)
        size = options.bytes_per_pack or 0
        chosen = [] if options.transport == "auto" else [f"transport={options.transport!r}"]
        if results.usable is None:
            # In one process only an optimizer has packs, and an algorithm of TensorFlow's is chosen by its name.
            best = min(results.packs, key=lambda row: row["seconds"])
            if options.transport == "tensorflow":
                chosen = [f"algorithm={best['algorithm']!r}"]
            of_strategy = f"create_strategy(all_reduce=AllReduceOptions({chosen[0]})), and " if chosen else ""
            packs = f"DistributedOptimizer(all_reduce=AllReduceOptions(bytes_per_pack={size}))"
            print(f"recommended: {of_strategy}{packs}, packs of {size_as_text(size)}")
        else:
            packs = ", ".join([*chosen, f"bytes_per_pack={size}"])
            print(f"recommended: AllReduceOptions({packs}), packs of {size_as_text(size)}")


def recommend(rows: Sequence[dict[str, Any]]) -> AllReduceOptions:
    """Returns the transport of the fastest row, and the smallest size of packs that is as fast with this transport.

    A small size is better, because small packs can be sent earlier during backpropagation. If only one transport was
    measured, the options leave its choice open.

    Args:
        rows: rows for one size of tensors, each with its `transport`, `bytes_per_pack` and `seconds`.

    Example:
        >>> from tfdist.bench.allreduce_report import recommend
        >>> small = {"transport": "native", "bytes_per_pack": 1, "seconds": 2.0}
        >>> recommend([small, {**small, "bytes_per_pack": 4, "seconds": 1.0}]).bytes_per_pack
        4
    """
    best = min(rows, key=lambda row: row["seconds"])
    sizes = [
        int(row["bytes_per_pack"])
        for row in rows
        if row["transport"] == best["transport"] and row["seconds"] <= _EQUALLY_FAST * best["seconds"]
    ]
    is_compared = len({row["transport"] for row in rows}) > 1
    return AllReduceOptions(transport=best["transport"] if is_compared else "auto", bytes_per_pack=min(sizes))


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
        is_word = title in ("algorithm", "transport", "method")
        result.add_column(title, justify="left" if is_word else "right", no_wrap=True)
    for row in rows:
        wire = row["wire"]
        result.add_row(
            size_as_text(row["size"]),
            row["algorithm"],
            row["transport"],
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
    """Draws the bus bandwidth of every algorithm, transport and method over the size.

    Args:
        rows: rows of `Bench.measure`.
        usable: bytes per second of plain TCP streams, drawn as a horizontal line, or None.
        path: file name of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    transports = list(dict.fromkeys(row["transport"] for row in rows))
    ways = list(dict.fromkeys((row["algorithm"], row["transport"]) for row in rows))
    figure, axis = pyplot.subplots(figsize=(7, 4.5))
    for way, method in dict.fromkeys(((row["algorithm"], row["transport"]), row["method"]) for row in rows):
        points = [
            (row["size"], row["busbw"] / 1e6)
            for row in rows
            if ((row["algorithm"], row["transport"]), row["method"]) == (way, method)
        ]
        algorithm, transport = way
        label = ", ".join(
            [
                "tfdist" if method == "none" else method,
                *([algorithm] if len(algorithms) > 1 else []),
                *([f"sent by {transport}"] if len(transports) > 1 else []),
            ]
        )
        style = ("-", "--", ":")[ways.index(way) % 3]
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
