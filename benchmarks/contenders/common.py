"""Arguments, order of the records, initial weights and measurement, for all contenders of slow_network.py."""

from __future__ import annotations

import argparse
import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Rounds:
    """When the ranks have equal weights.

    Args:
        every: number of local steps from one meeting to the next; 1 if the ranks sum their gradients in each step.
        start: number of synchronous steps before the first local step.
        differ: whether the weights differ between ranks after each step, so that all ranks evaluate their mean.
    """

    every: int = 1
    start: int = 0
    differ: bool = False

    def ends_with(self, step: int) -> bool:
        """Returns whether the ranks have equal weights after a step, counted from 1."""
        return step <= self.start or (step - self.start) % self.every == 0

    def whole(self, steps: int) -> int:
        """Returns a number of local steps that makes whole rounds, two at least, and is not below a number."""
        return steps if self.every == 1 else max(-(-steps // self.every), 2) * self.every


def settings_of(method: str) -> dict[str, str]:
    """Returns the settings NAME=VALUE of a method of local steps, such as "every=16 start=78"."""
    return dict(setting.split("=") for setting in method.split())


def rounds_of(arguments: argparse.Namespace, settings: dict[str, str]) -> Rounds:
    """Returns when the ranks meet. If steps are timed, the synchronous steps are as few as the measurement needs.

    Args:
        arguments: the contender's arguments.
        settings: the settings of the method: every, and start for post-local SGD.
    """
    start = int(settings.get("start", 0))
    return Rounds(int(settings["every"]), WARMUP_STEPS + arguments.steps if start and arguments.steps else start)


def parse_arguments() -> argparse.Namespace:
    """Returns the arguments that slow_network.py passes to every contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--addresses", required=True, help="IP addresses of all ranks, separated by commas")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="empty folder that all ranks share")
    parser.add_argument("--batch", type=int, required=True, help="global batch size of all ranks")
    parser.add_argument("--steps", type=int, required=True, help="number of timed steps; 0 trains for --epochs")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--layers", type=int, nargs="+", default=[2048, 2048], help="widths of the hidden layers")
    return parser.parse_args()


def own_rows(arguments: argparse.Namespace, rows: int) -> Iterator[np.ndarray]:
    """Yields this rank's row numbers of every global batch, in an order that all contenders share.

    Args:
        arguments: the contender's arguments.
        rows: number of rows of the training set.
    """
    workers = len(arguments.addresses.split(","))
    own = arguments.batch // workers
    epoch = 0
    while True:
        order = np.random.default_rng(epoch).permutation(rows)
        for first in range(0, rows - arguments.batch + 1, arguments.batch):
            batch = order[first : first + arguments.batch]
            yield batch[arguments.rank * own : (arguments.rank + 1) * own].astype(np.int32)
        epoch += 1


def kernel_shapes(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Returns the shapes of the kernels, first layer first."""
    return list(itertools.pairwise((INPUTS, *arguments.layers, CLASSES)))


def initial_weights(arguments: argparse.Namespace) -> list[np.ndarray]:
    """Returns the kernel and bias of every layer, from the distributions of Keras's default initializers."""
    rng = np.random.default_rng(0)
    weights = []
    for rows, columns in kernel_shapes(arguments):
        bound = np.sqrt(6 / (rows + columns))
        weights += [rng.uniform(-bound, bound, (rows, columns)).astype(np.float32), np.zeros(columns, np.float32)]
    return weights


def bytes_sent() -> int:
    """Returns how many bytes eth0 has sent, including headers."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    line = next(line for line in lines if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[8])


def total_steps(arguments: argparse.Namespace, rows: int) -> int:
    """Returns the number of steps over which the learning rate decays linearly to 0.

    Args:
        arguments: the contender's arguments.
        rows: number of rows of the training set.
    """
    if arguments.steps:
        return arguments.steps + WARMUP_STEPS
    return arguments.epochs * (rows // arguments.batch)


def run(
    arguments: argparse.Namespace,
    rows: int,
    step: Callable[[np.ndarray], Any],
    finish: Callable[[], Any],
    accuracy: Callable[[], float],
    rounds: Rounds = Rounds(),
) -> None:
    """Trains, and prints the seconds and bytes of a step; with --steps=0 prints the accuracy about every 39 steps.

    With local steps, what is printed is the mean over whole rounds, and the accuracy is that at the meetings and at the
    end. With synchronous steps before the local ones, there are means for both.

    Args:
        arguments: the contender's arguments.
        rows: number of rows of the training set.
        step: trains on the rows of the given numbers; may return before the step has ended.
        finish: waits until all steps have ended.
        accuracy: returns the accuracy on the test set of the weights that all ranks have in common; with local steps
            and with weights that differ all ranks call it.
        rounds: when the ranks meet.
    """
    batches = own_rows(arguments, rows)
    if arguments.steps:

        def timed(warmup: int, steps: int) -> tuple[float, float]:
            for _ in range(warmup):
                step(next(batches))
            finish()
            before, begin = bytes_sent(), time.perf_counter()
            for _ in range(steps):
                step(next(batches))
            finish()
            return (time.perf_counter() - begin) / steps, (bytes_sent() - before) / steps

        first = {}
        if rounds.start:
            seconds, size = timed(WARMUP_STEPS, arguments.steps)
            first = {"first_seconds": seconds, "first_bytes": size}
        # The first round makes connections.
        seconds, size = timed(WARMUP_STEPS if rounds.every == 1 else rounds.every, rounds.whole(arguments.steps))
        print_result(seconds=seconds, bytes=size, **first)
        return
    total = total_steps(arguments, rows)
    wanted = EVALUATE_EVERY
    for number in range(1, total + 1):
        step(next(batches))
        if number == total or (number >= wanted and rounds.ends_with(number)):
            wanted = (number // EVALUATE_EVERY + 1) * EVALUATE_EVERY
            # After synchronous steps rank 0 evaluates, and the others wait for it in the next all-reduce.
            if arguments.rank == 0 or rounds.every > 1 or rounds.differ:
                found = accuracy()
                if arguments.rank == 0:
                    print_result(step=number, accuracy=found)


def print_result(**result: float) -> None:
    """Prints a line that slow_network.py reads."""
    print("RESULT", json.dumps(result), flush=True)
