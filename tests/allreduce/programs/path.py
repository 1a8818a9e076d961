"""GradientPath: sums of gradients of every kind, uncompressed and compressed, over a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.allreduce.programs.replicas import normal, on_each, own, value
from tfdist.allreduce import AllReduceOptions, ErrorFeedback, TopK
from tfdist.allreduce.path import GradientPath

DENSITY = 0.01
# A large one, one that top-k leaves alone, another dtype, nothing, rows of a sparse one, and another large one.
SHAPES: list[tuple[int, ...]] = [(40, 30), (5,), (1100,), (3,), (50, 4), (1500,)]
DTYPES = ["float32", "float32", "float64", "float32", "float32", "float32"]
LARGE, SMALL, DOUBLE, MISSING, SPARSE, OTHER = range(6)
COMPRESSED = (LARGE, OTHER)
ROWS = [7, 2, 7]
BYTES_PER_PACK = 1000
SCALE = 1024.0


def run(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    with strategy.scope():
        plain, compressed = (
            _path(AllReduceOptions(bytes_per_pack=BYTES_PER_PACK, compression=compression))
            for compression in (None, ErrorFeedback(TopK(DENSITY)))
        )
        found: dict[str, Any] = {"plain": on_each(strategy, lambda: _sums(plain, 0))}
        found["compresses"] = [[plain.compresses, compressed.compresses]]
        steps = {
            "step 0": lambda: _sums(compressed, 0),
            "step 1": lambda: _sums(compressed, 1),
            "scaled": lambda: _sums(compressed, 2, scale=SCALE),
            "spoilt": lambda: _sums(compressed, 3, spoilt=True),
            "one of two": lambda: _one_of_two(compressed, 4),
        }
        for name, step in steps.items():
            found[name] = on_each(strategy, step)
            found[f"{name}, residuals"] = [_residuals(compressed)]
        found["traffic"] = [
            [[one.steps, one.sent, one.uncompressed] for one in (path.traffic() for path in (plain, compressed))]
        ]
    return found


def _path(options: AllReduceOptions) -> GradientPath:
    path = GradientPath(options)
    path.build([None if place == SPARSE else shape for place, shape in enumerate(SHAPES)], DTYPES)
    return path


def gradient(replica: int, step: int, place: int) -> Any:
    """Returns a replica's gradient: of whole numbers, unless it is compressed."""
    key = (replica, step, place)
    if place in COMPRESSED:
        return normal(*key, shape=SHAPES[place])
    return value(*key, shape=SHAPES[place], dtype=DTYPES[place])


def _gradients(step: int, *, scale: float = 1) -> list[Any]:
    made = [own(lambda replica, place=place: gradient(replica, step, place) * scale) for place in range(len(SHAPES))]
    made[MISSING] = None
    made[SPARSE] = tf.IndexedSlices(made[SPARSE][: len(ROWS)], tf.constant(ROWS), tf.constant(SHAPES[SPARSE]))
    return made


def _sums(path: GradientPath, step: int, *, scale: float | None = None, spoilt: bool = False) -> list[Any]:
    gradients = _gradients(step, scale=1 if scale is None else scale)
    if spoilt:
        second = tf.distribute.get_replica_context().replica_id_in_sync_group == 1
        gradients[OTHER] += tf.where(second, tf.constant(float("inf")), 0.0)
    sums = path.sum_gradients(gradients, scale=None if scale is None else tf.constant(scale))
    assert sums.pop(MISSING) is None
    assert isinstance(sums[SPARSE - 1], tf.IndexedSlices)
    return [tf.convert_to_tensor(total) for total in sums]


def _one_of_two(path: GradientPath, step: int) -> list[Any]:
    gradients = _gradients(step)
    return path.sum_gradients([gradients[SMALL], gradients[OTHER]], indices=[SMALL, OTHER])


def _residuals(path: GradientPath) -> dict[int, Any]:
    return {place: held.values().numpy().tolist() for place, held in path.residuals().items()}
