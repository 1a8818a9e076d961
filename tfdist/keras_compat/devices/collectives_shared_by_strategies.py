"""Mends MirroredStrategy, whose instances in one process use the same keys for their collectives.

TensorFlow remembers the shape of each collective by its keys. A second strategy, for example one that a notebook makes
when its first cell is run again, fails with "Shape mismatch in the collective instance" if its collectives have other
shapes. With the mend each strategy has keys of its own. The keys of several workers have to be equal on all workers, so
that MultiWorkerMirroredStrategy is left as it is.

Source: MirroredStrategy._collective_key_base in TensorFlow, which is 0 for every strategy. No upstream issue is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method

# More than the groups of devices of one strategy, each of which has a key.
_KEYS_OF_A_STRATEGY = 1000
_bases = itertools.count(_KEYS_OF_A_STRATEGY, _KEYS_OF_A_STRATEGY)


def _defect_present() -> bool:
    return getattr(tf.distribute.MirroredStrategy, "_collective_key_base", None) == 0


def _with_own_keys(stock: Callable) -> Callable:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        self._collective_key_base = next(_bases)
        stock(self, *args, **kwargs)

    return __init__


def _apply() -> None:
    patch_method(tf.distribute.MirroredStrategy, "__init__", _with_own_keys)


MEND = Mend(
    name="collectives_shared_by_strategies",
    issue="not reported",
    strategies=("mirrored",),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a second strategy in one process fails, because its collectives have the keys of the first strategy's",
    without_row="each cell has one strategy",
    # Needed before the strategy is made.
    needed_by=lambda strategy: strategy is None,
)
