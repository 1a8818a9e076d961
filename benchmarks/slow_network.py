"""Compares tfdist, plain TensorFlow, torch DDP and Horovod in data-parallel training over slow links.

Every worker runs in its own network namespace, and `tc tbf` limits the rate of its link, which needs root and iproute2.
Every contender trains a network of 5.8 million parameters on Fashion-MNIST from the same weights, with the records in
the same order and one thread for each worker. The time and the bytes of a step are measured on every link. Accuracy is
measured once, on unshaped links, because it does not depend on the link. The time to an accuracy is the number of steps
to this accuracy, times the time of a step on the link. With local steps, the time and the bytes of a step are means
over whole rounds, and accuracy is that of the average at the meetings and after the last step. For post-local SGD they
are means over the whole training, and the time to an accuracy counts the synchronous steps and the local ones.

    python benchmarks/slow_network.py --torch PYTHON --horovod PYTHON --write docs/benchmarks/communication.md

PYTHON is the interpreter of an environment with torch (its CPU wheel), or with Horovod 0.28.1 built with Gloo for
TensorFlow 2.15.1. Results that are in the output folder are not measured again. The program needs the data set of the
Debian package dataset-fashion-mnist, or the files that keras.datasets.fashion_mnist.load_data() downloads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from documents import replace_tables
from namespaces import Host, hosts
from slow_network_contenders import CONTENDERS, START, SYNCHRONOUS, Contender

FOLDER = Path(__file__).parent
RATES = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "unshaped": None}
DEADLINE_SECONDS = 1800.0


def one_thread() -> dict[str, str]:
    """Returns the environment variables of a program that computes with one thread on a CPU.

    TensorFlow multiplies with oneDNN. By default it does so only on CPUs with certain AVX-512 instructions; on others
    its own kernels can take much longer, so that the table would compare kernels and not communication.
    """
    return {
        "TF_ENABLE_ONEDNN_OPTS": "1",
        **os.environ,
        "PYTHONPATH": str(FOLDER.parent),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
    }


def run(contender: Contender, python: str, machines: list[Host], data: Path, *options: str) -> list[dict[str, float]]:
    """Runs a worker on every machine and returns the results that worker 0 printed.

    Args:
        contender: which program to run.
        python: path of the interpreter.
        machines: the hosts, one for each worker.
        data: file of the data set.
        *options: further arguments of the program.

    Raises:
        RuntimeError: if a worker fails or does not end in time; all workers are then killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for number, machine in enumerate(machines):
            command = [python, str(FOLDER / "contenders" / contender.program), f"--method={contender.method}"]
            command += [f"--rank={number}", f"--addresses={','.join(each.address for each in machines)}"]
            command += [f"--data={data}", f"--folder={folder}", *options]
            log = (Path(folder) / f"log-{number}").open("w")
            workers.append(machine.popen(command, env=one_thread(), stdout=log, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            while any(worker.poll() is None for worker in workers):
                failed = [worker.returncode for worker in workers if worker.returncode]
                if failed or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        texts = [(Path(folder) / f"log-{number}").read_text() for number in range(len(workers))]
    if any(worker.returncode for worker in workers):
        logs = "\n".join(f"==== worker {number}\n{text[-3000:]}" for number, text in enumerate(texts))
        raise RuntimeError(
            f"expected {contender.method} to end without an error within {DEADLINE_SECONDS:.0f} s, received:\n{logs}"
        )
    return [json.loads(line.partition("RESULT ")[2]) for line in texts[0].splitlines() if line.startswith("RESULT ")]


class Results:
    """Results by their settings, stored one per line in a file.

    Args:
        path: the file, which may exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                self.known.update(json.loads(line))

    def add(self, key: str, value: Any) -> None:
        self.known[key] = value
        with self._path.open("a") as file:
            file.write(json.dumps({key: value}) + "\n")
        print(key, value[-1] if isinstance(value, list) else value, flush=True)


def measure(arguments: argparse.Namespace, pythons: dict[str, str], results: Results, data: Path) -> None:
    """Measures everything whose result is missing."""
    chosen = {
        name: contender
        for name, contender in CONTENDERS.items()
        if pythons.get(contender.python) and name in arguments.contender
    }
    for workers in arguments.workers:
        for rate in arguments.rate:
            # Runs alternate between contenders, so that other load on the machine affects all of them alike.
            for number in range(arguments.runs):
                for name, contender in chosen.items():
                    key = f"{run_key(name, workers, rate, arguments)}{number}"
                    if key not in results.known:
                        steps = arguments.steps if RATES[rate] != "100mbit" else max(arguments.steps // 5, 5)
                        with hosts(workers, rate=RATES[rate]) as machines:
                            options = (f"--batch={arguments.batch}", f"--steps={steps}", *layer_options(arguments))
                            results.add(key, run(contender, pythons[contender.python], machines, data, *options)[-1])
        for name, contender in chosen.items():
            key = accuracy_key(name, workers, arguments)
            if arguments.epochs and key not in results.known:
                with hosts(workers, rate=None) as machines:
                    options = (f"--batch={arguments.batch}", "--steps=0", f"--epochs={arguments.epochs}")
                    options += layer_options(arguments)
                    results.add(key, run(contender, pythons[contender.python], machines, data, *options))


def layer_options(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the options of a worker for its hidden layers."""
    return ("--layers", *map(str, arguments.layers)) if arguments.layers else ()


def model_key(arguments: argparse.Namespace) -> str:
    """Returns the part of a key that names the batch, and layers other than the usual ones."""
    return f"batch {arguments.batch}" + (f" | layers {arguments.layers}" if arguments.layers else "")


def run_key(name: str, workers: int, rate: str, arguments: argparse.Namespace) -> str:
    """Returns the beginning of the keys of a contender's runs; the number of the run follows."""
    return f"{name} | {workers} workers | {rate} | {model_key(arguments)} | run "


def accuracy_key(name: str, workers: int, arguments: argparse.Namespace) -> str:
    """Returns the key under which the accuracies of a contender are stored."""
    workers = min(arguments.workers) if CONTENDERS[name].exact else workers
    return f"{name} | {workers} workers | accuracy | {model_key(arguments)} | {arguments.epochs} epochs"


def mean_of(result: dict[str, float], part: str, start: int, steps: int | None) -> float:
    """Returns the mean seconds or bytes of the first steps of a training.

    Args:
        result: what a contender printed; with synchronous steps before the local ones it has `first_seconds` too.
        part: "seconds" or "bytes".
        start: number of synchronous steps before the local ones, if there are such.
        steps: number of steps; None for the local ones alone.
    """
    if steps is None or f"first_{part}" not in result:
        return result[part]
    first = min(start, steps)
    return (first * result[f"first_{part}"] + (steps - first) * result[part]) / steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a contender on a link.

    Attributes:
        medians: the median seconds and bytes of a step over all runs.
        curve: accuracies, each with the number of its step; empty without a training for accuracy.
    """

    medians: dict[str, float]
    curve: list[dict[str, float]]

    def mean(self, part: str, steps: int | None = None) -> float:
        """Returns the mean seconds or bytes of the first steps of a training; None for all of them."""
        # Without a training for accuracy there is no length of the training: the local steps alone.
        last = self.curve[-1]["step"] if self.curve else None
        return mean_of(self.medians, part, START, last if steps is None else steps)

    def seconds_to(self, accuracy: float) -> float | None:
        """Returns the seconds until an accuracy is reached; None if it is not."""
        step = next((point["step"] for point in self.curve if point["accuracy"] >= accuracy), None)
        return None if step is None else step * self.mean("seconds", step)


def measured_on(arguments: argparse.Namespace, results: Results, workers: int, rate: str) -> dict[str, Measured]:
    """Returns what was measured of each contender on a link."""
    found = {}
    for name in (name for name in CONTENDERS if name in arguments.contender):
        runs = [
            value for key, value in results.known.items() if key.startswith(run_key(name, workers, rate, arguments))
        ]
        if runs:
            found[name] = Measured(
                medians={part: statistics.median(run[part] for run in runs) for part in runs[0]},
                curve=results.known.get(accuracy_key(name, workers, arguments), []),
            )
    return found


def tables(arguments: argparse.Namespace, results: Results) -> str:
    """Returns a table for each number of workers and each link, in Markdown."""
    parts = []
    for workers in arguments.workers:
        for rate in arguments.rate:
            lines = [
                f"{workers} workers, {rate}:",
                "",
                "| | samples/s | ms per step | MB per step | bytes / TensorFlow's bytes | "
                f"s to {arguments.target:.0%} accuracy | final accuracy |",
                "| --- | --- | --- | --- | --- | --- | --- |",
            ]
            measured = measured_on(arguments, results, workers, rate)
            for name, one in measured.items():
                seconds, size, until = one.mean("seconds"), one.mean("bytes"), one.seconds_to(arguments.target)
                against = size / measured["TensorFlow"].mean("bytes") if "TensorFlow" in measured else None
                cells = (
                    f"{arguments.batch / seconds:,.0f}",
                    f"{1000 * seconds:.0f}",
                    f"{size / 1e6:.2f}",
                    f"{against:.4f}" if against is not None else "",
                    f"{until:,.0f}" if until else "",
                    f"{one.curve[-1]['accuracy']:.4f}" if one.curve else "",
                )
                lines.append(f"| {name} | {' | '.join(cells)} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def write_plot(arguments: argparse.Namespace, results: Results) -> None:
    """Plots the accuracies on the first link, for the first number of workers."""
    from accuracy_over_time import plot

    workers, rate = arguments.workers[0], arguments.rate[0]
    curves = {
        name: [(point["step"] * one.mean("seconds", point["step"]), point["accuracy"]) for point in one.curve]
        for name, one in measured_on(arguments, results, workers, rate).items()
        if one.curve
    }
    plot(curves, arguments.plot, title=f"{workers} workers, links of {rate}", target=arguments.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="interpreter with torch; without this option torch is not measured")
    parser.add_argument("--horovod", help="interpreter with Horovod; without this option Horovod is not measured")
    parser.add_argument(
        "--contender",
        nargs="+",
        choices=tuple(CONTENDERS),
        default=list(SYNCHRONOUS),
        help="what is measured and shown; by default the contenders of docs/benchmarks/communication.md",
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", nargs="+", choices=tuple(RATES), default=list(RATES))
    parser.add_argument("--batch", type=int, default=256, help="global batch size of all workers")
    parser.add_argument("--layers", type=int, nargs="+", help="widths of the hidden layers; 2048 and 2048 by default")
    parser.add_argument("--steps", type=int, default=30, help="number of timed steps in a run")
    parser.add_argument("--runs", type=int, default=3, help="number of runs of which the median is taken")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the training for accuracy; 0 for no training")
    parser.add_argument("--target", type=float, default=0.86, help="accuracy to which the time is measured")
    parser.add_argument("--output", type=Path, default=Path("slow-network"), help="folder for the results")
    parser.add_argument("--write", type=Path, help="document whose tables, between its markers, are replaced")
    parser.add_argument("--plot", type=Path, help="PNG file to write: accuracies over time, on the first link")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(FOLDER.parent))
    from tfdist.train.data import fashion_mnist_images

    images = fashion_mnist_images()
    data = (arguments.output / "data.npz").resolve()
    (x, y), (test_x, test_y) = images["train"], images["eval"]
    np.savez(data, x=x.reshape(len(x), -1), y=y, test_x=test_x.reshape(len(test_x), -1), test_y=test_y)
    pythons = {"own": sys.executable, "torch": arguments.torch, "horovod": arguments.horovod}
    results = Results(arguments.output / "results.jsonl")
    measure(arguments, pythons, results, data)
    text = tables(arguments, results)
    print(text)
    if arguments.plot:
        write_plot(arguments, results)
    if arguments.write:
        replace_tables(arguments.write, text)


if __name__ == "__main__":
    main()
