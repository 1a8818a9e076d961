"""`tfdist bench optimizer`: time of a step of each optimizer, compared with the memory bandwidth."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist._suggestions import Parser
from tfdist.bench.extra import require
from tfdist.bench.optimizer_shapes import MODELS
from tfdist.bench.results_folder import make_results_folder

# How many times a step reads or writes as many bytes as all variables have. A step reads variables, gradients and
# slots, and writes variables and slots; LAMB and LARS read some of them a second time to compute norms.
TRANSFERS = {"SGD": 5, "Adam": 7, "AdamW": 7, "keras Lamb": 10, "TFA LAMB": 10, "LAMB": 10, "LARS": 7}
# First steps that take longer than this time are reported, so that the benchmark does not seem to hang.
_SLOW_SECONDS = 10.0


def optimizers() -> dict[str, Any]:
    """Returns the installed optimizers by name, with weight decay if it is usual for the optimizer."""
    from tfdist.keras_compat.version import keras
    from tfdist.optimizers import LAMB, LARS

    stock = keras().optimizers
    found: dict[str, Any] = {
        "SGD": stock.SGD(1e-6, momentum=0.9),
        "Adam": stock.Adam(1e-6),
        "AdamW": stock.AdamW(1e-6, weight_decay=0.01),
    }
    if hasattr(stock, "Lamb"):
        found["keras Lamb"] = stock.Lamb(1e-6, weight_decay=0.01)
    if importlib.util.find_spec("tensorflow_addons"):
        import tensorflow_addons

        found["TFA LAMB"] = tensorflow_addons.optimizers.LAMB(1e-6, weight_decay=0.01)
    found["LAMB"] = LAMB(1e-6, weight_decay=0.01)
    found["LARS"] = LARS(1e-6, weight_decay=1e-4)
    found["LARS, no decay"] = LARS(1e-6)
    return found


def measure(model: str, runs: int, steps: int) -> list[dict[str, Any]]:
    """Measures every optimizer in alternating runs; returns a row of medians for each, with and without jit_compile.

    Args:
        model: name of the model whose variables are updated.
        runs: number of runs of which the median is taken.
        steps: number of steps in a run.
    """
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    shapes = MODELS[model]()
    variables = [tf.Variable(rng.normal(size=shape).astype("float32"), name=f"v{i}") for i, shape in enumerate(shapes)]
    gradients = [tf.constant(rng.normal(size=shape).astype("float32")) for shape in shapes]
    size = sum(4 * int(np.prod(shape)) for shape in shapes)

    def stepper(optimizer: Any, jit_compile: bool) -> Callable[[], Any]:
        @tf.function(jit_compile=jit_compile)
        def step() -> None:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        return step

    @tf.function
    def add() -> None:
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_add(gradient)

    cases: dict[tuple[str, bool], Callable[[], Any]] = {("add", False): add}
    for name, optimizer in optimizers().items():
        if hasattr(optimizer, "build"):
            optimizer.build(variables)
        else:
            # Legacy optimizers (TensorFlow before 2.11) make their slots in the first step, which XLA cannot compile.
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        cases |= {(name, jit): stepper(optimizer, jit) for jit in (False, True)}
    times: dict[tuple[str, bool], list[float]] = {case: [] for case in cases}
    for number in range(-1, runs):
        for case, step in cases.items():
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            seconds = time.perf_counter() - begin
            if number >= 0:
                times[case].append(1000 * seconds / steps)
            elif seconds > _SLOW_SECONDS:
                # The first round traces and compiles; XLA takes minutes for a thousand variables.
                print(f"{model}, {case[0]}: {seconds:.0f} s for the first steps", file=sys.stderr, flush=True)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    # assign_add reads the variables and the gradients and writes the variables: three transfers.
    milliseconds_per_transfer = statistics.median(times.pop(("add", False))) / 3
    return [
        {
            "model": model,
            "optimizer": name,
            "jit_compile": jit,
            "milliseconds": statistics.median(found),
            "limit": TRANSFERS[name.partition(",")[0]] * milliseconds_per_transfer,
            "gigabytes_per_second": size / milliseconds_per_transfer / 1e6,
        }
        for (name, jit), found in times.items()
    ]


def table(rows: list[dict[str, Any]]) -> Any:
    """Returns the rows as a rich.table.Table."""
    import rich.box
    from rich.table import Table

    result = Table(box=rich.box.SIMPLE_HEAD)
    # The optimizers to compare with, each with jit_compile or without, whichever is faster.
    known = (("Adam", True), ("SGD", True), ("keras Lamb", False), ("TFA LAMB", False))
    others = [(name, jit) for name, jit in known if any(row["optimizer"] == name for row in rows)]
    ratios = [f"best / {name}{' jit' if jit else ''}" for name, jit in others]
    for title in ("model", "optimizer", "ms", "ms, jit_compile", "limit ms", *ratios):
        result.add_column(title, justify="left" if title in ("model", "optimizer") else "right", no_wrap=True)
    found = {(row["model"], row["optimizer"], row["jit_compile"]): row["milliseconds"] for row in rows}
    for row in rows:
        if row["jit_compile"]:
            continue
        model, name = row["model"], row["optimizer"]
        both = [found[model, name, jit] for jit in (False, True)]
        numbers = (
            *(f"{value:.1f}" for value in (*both, row["limit"])),
            *(f"{min(both) / found[model, *other]:.2f}" for other in others),
        )
        result.add_row(model, name, *numbers)
    return result


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the time of a step with and without jit_compile, and the limit that the memory bandwidth sets."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = pyplot.subplots(1, len(models), figsize=(5 * len(models), 4.5), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        names = list(dict.fromkeys(row["optimizer"] for row in rows if row["model"] == model))
        for shift, jit in ((-0.2, False), (0.2, True)):
            heights = [row["milliseconds"] for row in rows if row["model"] == model and row["jit_compile"] == jit]
            positions = [number + shift for number in range(len(names))]
            axis.bar(positions, heights, 0.4, label="jit_compile" if jit else "without jit_compile")
        limits = [row["limit"] for row in rows if row["model"] == model and not row["jit_compile"]]
        axis.plot(range(len(names)), limits, "k_", markersize=28, label="bytes moved / bandwidth")
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axis.set_title(model)
        axis.set_ylabel("milliseconds per step")
    axes[0, 0].legend(loc="upper left", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv: list[str]) -> int:
    """Runs the command and returns the exit code.

    Args:
        argv: command-line arguments after `tfdist bench optimizer`.
    """
    options = parser()
    arguments = options.parse_args(argv)
    if min(arguments.runs, arguments.steps) < 1:
        options.error(
            f"expected --runs and --steps to be at least 1, received --runs {arguments.runs} --steps {arguments.steps}."
        )
    require(options, "matplotlib")
    make_results_folder(options, arguments.output)
    from rich.console import Console

    rows = [row for model in arguments.model or MODELS for row in measure(model, arguments.runs, arguments.steps)]
    (arguments.output / "optimizer.json").write_text(json.dumps(rows, indent=1))
    plot(rows, arguments.output / "optimizer.png")
    Console(width=120).print(table(rows))
    bandwidths = {row["model"]: row["gigabytes_per_second"] for row in rows}
    measured = ", ".join(f"{name} {value:.2g} GB/s" for name, value in bandwidths.items())
    print(
        "limit: the bytes that a step reads and writes, divided by the bandwidth that variable.assign_add reaches "
        f"({measured})\nresults: {arguments.output}"
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    result = Parser(prog="tfdist bench optimizer", description=__doc__)
    result.add_argument(
        "--model",
        action="append",
        choices=tuple(MODELS),
        help="model whose variables are updated; may be repeated (default: all)",
    )
    result.add_argument("--runs", type=int, default=9, help="number of runs of which the median is taken (default: 9)")
    result.add_argument("--steps", type=int, default=3, help="number of steps in a run (default: 3)")
    result.add_argument(
        "--output",
        type=Path,
        default=Path("bench-optimizer"),
        help="folder for optimizer.json and optimizer.png (default: %(default)s)",
    )
    return result
