"""Makes the Keras in use ready for a strategy: what every strategy passes through on its way to the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tfdist.keras_compat.mends import apply_mends
from tfdist.keras_compat.which import keras_in_use

_Strategy = TypeVar("_Strategy")


def prepare_keras(strategy: _Strategy, kind: str) -> _Strategy:
    """Returns the strategy, after applying the mends that it needs with the Keras in use.

    Args:
        strategy: a tf.distribute.Strategy.
        kind: its name in create_strategy.

    Raises:
        ValueError: if Keras runs on another backend than TensorFlow.
    """
    apply_mends(kind, keras_in_use())
    return strategy


def check_variable_partitioner(partitioner: Callable | None) -> None:
    """Raises ValueError if the Keras in use cannot take sharded variables.

    Keras 3 asks a variable for its `handle`, which a ShardedVariable does not have (keras-team/keras#18624).
    """
    if partitioner is not None and keras_in_use().is_keras3:
        raise ValueError(
            "expected no variable_partitioner with Keras 3, whose variables cannot be sharded "
            "(keras-team/keras#18624), received one; leave it out, or use tf_keras (TF_USE_LEGACY_KERAS=1)."
        )
