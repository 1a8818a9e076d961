"""Accumulation: two updates of three backward passes each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.allreduce.programs.replicas import on_each, own, value
from tfdist.allreduce.accumulation import Accumulation
from tfdist.allreduce.per_replica import PerReplica

PASSES = 3
UPDATES = 2
SHAPE = (4, 2)
# The gradients that are given in each pass: all passes, the second pass alone, rows of a sparse one, and never.
ALWAYS, ONCE, SPARSE, NEVER = range(4)
ROWS = [1, 3, 1]


def run(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    with strategy.scope():
        accumulation = Accumulation(PASSES)
        accumulation.build([SHAPE] * 4, ["float32"] * 4)
        means = [PerReplica(tf.zeros(SHAPE), name=f"mean{i}") for i in range(4)]
        updates = PerReplica(tf.zeros([], tf.int64), name="updates")
        without: list[int] = []

        def update(given: list[Any]) -> None:
            # Every pass traces an update; the last one of them runs last.
            without[:] = [i for i, mean in enumerate(given) if mean is None]
            updates.assign(updates.read() + 1)
            for held, mean in zip(means, given, strict=True):
                if mean is not None:
                    held.assign(mean)

        found: dict[str, Any] = {"updates": [], "means": []}
        for number in range(UPDATES):
            for position in range(PASSES):
                on_each(strategy, _pass(accumulation, update, number, position))
                found["updates"].append([int(one) for one in updates.local_values()])
            found["means"].append([[one.numpy().tolist() for one in mean.local_values()] for mean in means])
    found["without"] = without
    return {"all": [found]}


def _pass(accumulation: Accumulation, update: Any, number: int, position: int) -> Callable[[], Any]:
    def step() -> Any:
        def gradient(place: int) -> tf.Tensor:
            return own(lambda replica: value(number, position, replica, place, shape=SHAPE))

        slices = tf.IndexedSlices(gradient(SPARSE)[: len(ROWS)], tf.constant(ROWS), tf.constant(SHAPE))
        accumulation.add([gradient(ALWAYS), gradient(ONCE) if position == 1 else None, slices, None], update)
        return tf.zeros([])

    return step
