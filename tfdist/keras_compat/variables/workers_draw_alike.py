"""Mends Keras 2's random numbers, which are the same on every worker.

`set_random_seed` gives all workers the same seeds, so that Dropout, for example, drops the same units on each worker.
With the mend every worker except the first adds a multiple of its worker number to the seed.

Source: RandomGenerator in Keras 2's backend.py. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.variables.replicas_draw_alike import STRIDE
from tfdist.keras_compat.version import engine_module


def _defect_present() -> bool:
    return "distribute" not in inspect.getsource(_generator().make_legacy_seed)


def _generator() -> Any:
    return engine_module("training").backend.RandomGenerator


def _worker() -> int:
    strategy = tf.distribute.get_strategy()
    return int(getattr(strategy.extended, "_id_in_cluster", 0) or 0)


def _make_legacy_seed(stock: Callable) -> Callable:
    def make_legacy_seed(self: Any) -> int | None:
        seed = stock(self)
        worker = _worker()
        if not worker:
            return seed
        if seed is None:
            # TensorFlow would choose this seed, from its global seed and the number of operations so far.
            seed = tf.compat.v1.get_seed(None)[1]
        return seed if seed is None else (seed + worker * STRIDE) & 0x7FFFFFFF

    return make_legacy_seed


def _apply() -> None:
    generator = _generator()
    generator.make_legacy_seed = _make_legacy_seed(generator.make_legacy_seed)


MEND = Mend(
    name="workers_draw_alike",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="random numbers are the same on every worker: Dropout drops the same units",
    rows=("Dropout: replicas draw differently, runs repeat",),
)
