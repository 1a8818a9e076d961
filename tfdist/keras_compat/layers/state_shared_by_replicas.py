"""Refuses Keras 3's stateful recurrent layers on central storage, where all replicas share the state.

Each replica has rows of its own and hence a state of its own. Central storage has only one copy of the state, which
replicas cannot assign in stock TensorFlow. With the mend counter_update_is_read_then_assign they could, and every
replica would continue with the state of the first replica.

Source: RNN._create_state_variables in Keras 3's layers/rnn/rnn.py. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from keras.src.layers import RNN

    return "aggregation" not in RNN._create_state_variables.__wrapped__.__code__.co_names


def _refusing(stock: Callable) -> Callable:
    def create_state_variables(self: Any, batch_size: int) -> None:
        strategy = tf.distribute.get_strategy()
        is_central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
        if is_central and strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"expected recurrent layers with stateful=False on the strategy central_storage, received {self.name} "
                "with stateful=True; use the strategy mirrored, on which each replica has a state of its own."
            )
        stock(self, batch_size)

    return create_state_variables


def _apply() -> None:
    from keras.src.layers import RNN

    RNN._create_state_variables = _refusing(RNN._create_state_variables)


MEND = Mend(
    name="state_shared_by_replicas",
    issue="not reported",
    strategies=("central_storage",),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="replicas share the state of a stateful recurrent layer, which fails in the first step and is refused by "
    "tfdist",
    rows=("stateful RNN, reset between epochs",),
)
