"""`tfdist bench input`: records per second, stalls and bytes read, with tf.data's auto-sharding and with tfdist."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tfdist._suggestions import Parser
from tfdist.bench.extra import require
from tfdist.bench.results_folder import make_results_folder

SOURCES = ("FILE", "DATA", "tfdist")
_TIMEOUT_SECONDS = 600


def measure(workload: str, source: str, pipelines: int, pattern: str) -> dict[str, float]:
    """Starts one worker for each input pipeline and returns their measurements.

    Args:
        workload: name of the workload.
        source: "tfdist", or the name of an auto-sharding policy of tf.data.
        pipelines: number of input pipelines.
        pattern: files of the dataset.

    Returns:
        Records per second with `real`, `cached` and `synthetic` data; `stall`, the share of the time that a step waits
        for data; `bytes`, the bytes that all workers together read in one epoch.

    Raises:
        RuntimeError: if a worker failed; contains the logs of the workers.
    """
    command = [sys.executable, "-m", "tfdist", "launch", "--workers", str(pipelines)]
    command += ["--timeout-seconds", str(_TIMEOUT_SECONDS)]
    command += ["-m", "tfdist.bench.input_worker", workload, source, pattern]
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS + 60, cwd=folder)
    found = [json.loads(text) for text in re.findall(r"MEASURED (\{.*\})", ended.stdout)]
    if ended.returncode or len(found) != pipelines:
        raise RuntimeError(
            f"expected {pipelines} workers to measure {workload} with {source}, received exit code {ended.returncode}:"
            f"\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
        )
    # Every step waits for all workers, so that each worker measures the rate of all of them.
    rates = {name: statistics.median(result[name] for result in found) for name in ("real", "cached", "synthetic")}
    return {**rates, "stall": 1 - rates["real"] / rates["synthetic"], "bytes": sum(result["bytes"] for result in found)}


def run(workloads: list[str], pipelines: list[int], runs: int, folder: Path) -> list[dict[str, Any]]:
    """Measures every workload, number of pipelines and source in alternating runs; returns a row of medians for each.

    Args:
        workloads: names of the workloads.
        pipelines: numbers of input pipelines.
        runs: number of runs of which the median is taken.
        folder: folder to write the datasets to.
    """
    from tfdist.bench.input_workloads import WORKLOADS
    from tfdist.input import write_tfrecords

    rows: list[dict[str, Any]] = []
    for workload in workloads:
        work = WORKLOADS[workload]
        names = write_tfrecords(work.examples(), str(folder / workload / "data"), num_shards=work.files)
        size = sum(Path(name).stat().st_size for name in names)
        for count in pipelines:
            found: dict[str, list[dict[str, float]]] = {source: [] for source in SOURCES}
            for _ in range(runs):
                for source in SOURCES:
                    found[source].append(measure(workload, source, count, str(folder / workload / "data-*.tfrecord")))
                    print(".", end="", file=sys.stderr, flush=True)
            for source, results in found.items():
                medians = {name: statistics.median(result[name] for result in results) for name in results[0]}
                medians["bytes"] /= size
                rows.append({"workload": workload, "pipelines": count, "source": source, **medians})
    print(file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]]) -> Any:
    """Returns the rows as a rich.table.Table."""
    import rich.box
    from rich.table import Table

    result = Table(box=rich.box.SIMPLE_HEAD)
    for title in ("workload", "pipelines", "sharding", "real/s", "cached/s", "synthetic/s", "stall", "bytes read"):
        result.add_column(title, justify="left" if title in ("workload", "sharding") else "right")
    for row in rows:
        rates = (f"{row[name]:,.0f}" for name in ("real", "cached", "synthetic"))
        numbers = (*rates, f"{row['stall']:.2f}", f"{row['bytes']:.3f}")
        result.add_row(row["workload"], str(row["pipelines"]), row["source"], *numbers)
    return result


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the rate with real data and the bytes read over the number of pipelines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    figure, axes = pyplot.subplots(2, len(workloads), figsize=(5 * len(workloads), 7), squeeze=False)
    for column, workload in enumerate(workloads):
        for source in SOURCES:
            chosen = [row for row in rows if row["workload"] == workload and row["source"] == source]
            pipelines = [row["pipelines"] for row in chosen]
            for axis, name in zip(axes[:, column], ("real", "bytes"), strict=True):
                axis.plot(pipelines, [row[name] for row in chosen], marker="o", label=source)
                axis.set_xticks(pipelines)
                axis.set_xlabel("pipelines")
        for axis in axes[:, column]:
            # This comes after all lines are drawn, because setting the lower limit also fixes the upper limit.
            axis.set_ylim(bottom=0)
        axes[0, column].set_title(workload)
        axes[0, column].set_ylabel("records per second, real data")
        axes[1, column].set_ylabel("bytes read / bytes in the dataset")
        axes[0, column].legend(title="sharding")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(argv: list[str]) -> int:
    """Runs the command and returns the exit code.

    Args:
        argv: command-line arguments after `tfdist bench input`.
    """
    options = parser()
    arguments = options.parse_args(argv)
    if min(arguments.pipelines) < 1 or arguments.runs < 1:
        options.error(
            "expected --pipelines and --runs to be at least 1, received "
            f"--pipelines {' '.join(map(str, arguments.pipelines))} --runs {arguments.runs}."
        )
    require(options, "matplotlib")
    make_results_folder(options, arguments.output)
    from rich.console import Console

    with tempfile.TemporaryDirectory() as folder:
        rows = run(arguments.workload or ["jpeg", "small"], arguments.pipelines, arguments.runs, Path(folder))
    (arguments.output / "input.json").write_text(json.dumps(rows, indent=1))
    plot(rows, arguments.output / "input.png")
    Console(width=100).print(table(rows))
    print(
        "stall: 1 - real/synthetic; bytes read: by all workers in one epoch, divided by the bytes in the dataset\n"
        f"results: {arguments.output}"
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    result = Parser(prog="tfdist bench input", description=__doc__)
    result.add_argument(
        "--workload",
        action="append",
        choices=("jpeg", "small"),
        help="dataset to read; may be repeated (default: both)",
    )
    result.add_argument(
        "--pipelines", type=int, nargs="+", default=[1, 2, 4], help="numbers of input pipelines (default: 1 2 4)"
    )
    result.add_argument("--runs", type=int, default=1, help="number of runs of which the median is taken (default: 1)")
    result.add_argument(
        "--output",
        type=Path,
        default=Path("bench-input"),
        help="folder for input.json and input.png (default: %(default)s)",
    )
    return result
