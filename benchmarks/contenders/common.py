"""What every contender of slow_network.py shares: the data, its order, the measure, and how results are said."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

INPUTS, CLASSES = 784, 10
LEARNING_RATE = 0.05
MOMENTUM = 0.9
WARMUP_STEPS = 4
EVALUATE_EVERY = 39


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--addresses", required=True, help="of all ranks, with commas")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="shared by the ranks, empty")
    parser.add_argument("--batch", type=int, required=True, help="rows of all ranks together")
    parser.add_argument("--steps", type=int, required=True, help="to be timed; 0 trains for --epochs")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--layers", type=int, nargs="+", default=[2048, 2048], help="widths of the hidden layers")
    return parser.parse_args()


def own_rows(found: argparse.Namespace, rows: int) -> Iterator[np.ndarray]:
    """The row numbers of this rank in every global batch, in an order that is the same for every contender."""
    workers = len(found.addresses.split(","))
    own = found.batch // workers
    epoch = 0
    while True:
        order = np.random.default_rng(epoch).permutation(rows)
        for first in range(0, rows - found.batch + 1, found.batch):
            batch = order[first : first + found.batch]
            yield batch[found.rank * own : (found.rank + 1) * own].astype(np.int32)
        epoch += 1


def sizes(found: argparse.Namespace) -> list[tuple[int, int]]:
    """Rows and columns of the kernels."""
    return list(itertools.pairwise((INPUTS, *found.layers, CLASSES)))


def initial_weights(found: argparse.Namespace) -> list[np.ndarray]:
    """Kernels and biases in turn, as Keras draws them."""
    rng = np.random.default_rng(0)
    weights = []
    for rows, columns in sizes(found):
        bound = np.sqrt(6 / (rows + columns))
        weights += [rng.uniform(-bound, bound, (rows, columns)).astype(np.float32), np.zeros(columns, np.float32)]
    return weights


def bytes_sent() -> int:
    line = next(one for one in Path("/proc/net/dev").read_text().splitlines() if one.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[8])


def total_steps(found: argparse.Namespace, rows: int) -> int:
    """How many steps are made, over which the rate goes down to 0 in a line."""
    return found.steps + WARMUP_STEPS if found.steps else found.epochs * (rows // found.batch)


def run(
    found: argparse.Namespace,
    rows: int,
    step: Callable[[np.ndarray], Any],
    finish: Callable[[], Any],
    accuracy: Callable[[], float],
) -> None:
    """Trains, and says seconds and bytes of a step, or the accuracy every so many steps.

    Args:
        found: the arguments.
        rows: of the training set.
        step: trains on rows; may return before it is done.
        finish: waits until all steps are done.
        accuracy: on the test set.
    """
    batches = own_rows(found, rows)
    for _ in range(WARMUP_STEPS if found.steps else 0):
        step(next(batches))
    finish()
    if found.steps:
        before, begin = bytes_sent(), time.perf_counter()
        for _ in range(found.steps):
            step(next(batches))
        finish()
        seconds = (time.perf_counter() - begin) / found.steps
        say(seconds=seconds, bytes=(bytes_sent() - before) / found.steps)
        return
    total = total_steps(found, rows)
    for number in range(1, total + 1):
        step(next(batches))
        # Replicas are alike: one looks, the others wait for it in the next sum.
        if found.rank == 0 and (number % EVALUATE_EVERY == 0 or number == total):
            say(step=number, accuracy=accuracy())


def say(**result: float) -> None:
    print("RESULT", json.dumps(result), flush=True)
