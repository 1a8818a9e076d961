"""Measures the time that packs sent during backpropagation save, and the overhead of DistributedOptimizer.

    python benchmarks/overlap.py

Each of two workers runs in its own network namespace, which needs root and iproute2. Runs alternate between the cases.

The first part trains a network of equal layers on links of 1 Gbit/s: with gradients in packs, with gradients in one
pack, and without any all-reduce, where both workers still compute at the same time. The all-reduce takes the difference
between a step with one pack and a step without all-reduce. Backpropagation takes two thirds of a step without
all-reduce, because it computes two matrix products for each matrix product of the forward pass; --batch changes this
time. The second part compares DistributedOptimizer without options with the bare optimizer on unshaped links.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from namespaces import hosts
from slow_network import run
from slow_network_contenders import Contender

PACKS = Contender(program="keras_worker.py", method="tfdist")
ONE_PACK = Contender(program="keras_worker.py", method="tfdist one-pack")
ALONE = Contender(program="keras_worker.py", method="tfdist alone")
BARE = Contender(program="keras_worker.py", method="tfdist bare")


def seconds(contender: Contender, data: Path, arguments: argparse.Namespace, *, rate: str | None) -> float:
    """Returns the seconds of a step of two workers."""
    options = [f"--batch={arguments.batch}", f"--steps={arguments.steps}", "--layers", *map(str, arguments.layers)]
    with hosts(2, rate=rate) as machines:
        return run(contender, sys.executable, machines, data, *options)[-1]["seconds"]


def with_native(contender: Contender) -> Contender:
    """Returns a contender that sends with tfdist-native."""
    if contender is ALONE:
        return contender
    return dataclasses.replace(contender, method=contender.method.replace("tfdist", "tfdist native"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[1024] * 6, help="widths of the hidden layers")
    parser.add_argument("--batch", type=int, default=3072, help="global batch size of both workers")
    parser.add_argument("--steps", type=int, default=20, help="number of timed steps in a run")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of which the median is taken")
    parser.add_argument("--native", action="store_true", help="send with tfdist-native instead of TensorFlow")
    parser.add_argument("--packs-only", action="store_true", help="measure only packs and one pack, on 1 Gbit/s")
    arguments = parser.parse_args()
    cases = {
        "no all-reduce": (ALONE, None),
        "packs, 1 Gbit/s": (PACKS, "1gbit"),
        "one pack, 1 Gbit/s": (ONE_PACK, "1gbit"),
        "DistributedOptimizer, unshaped": (PACKS, None),
        "bare optimizer, unshaped": (BARE, None),
    }
    if arguments.packs_only:
        cases = {name: case for name, case in cases.items() if case[1]}
    if arguments.native:
        cases = {name: (with_native(contender), rate) for name, (contender, rate) in cases.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (60_000, 784), np.uint8)
        labels = rng.integers(0, 10, 60_000, np.uint8)
        np.savez(data, x=images, y=labels, test_x=images[:1], test_y=labels[:1])
        for number in range(1, arguments.runs + 1):
            for name, (contender, rate) in cases.items():
                times[name].append(seconds(contender, data, arguments, rate=rate))
                print(f"run {number}, {name}: {1e3 * times[name][-1]:.0f} ms per step", flush=True)
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    for name, median in medians.items():
        print(f"median, {name}: {1e3 * median:.0f} ms")
    packs, one_pack = medians["packs, 1 Gbit/s"], medians["one pack, 1 Gbit/s"]
    print(f"packs / one pack: {packs / one_pack:.3f}")
    if arguments.packs_only:
        return
    alone = medians["no all-reduce"]
    print(f"all-reduce in one pack: {1e3 * (one_pack - alone):.0f} ms, backprop: {1e3 * alone * 2 / 3:.0f} ms")
    overhead = medians["DistributedOptimizer, unshaped"] / medians["bare optimizer, unshaped"]
    print(f"DistributedOptimizer / bare optimizer, unshaped: {overhead:.3f}")


if __name__ == "__main__":
    main()
