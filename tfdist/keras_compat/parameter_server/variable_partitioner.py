"""Refuses a variable partitioner if the Keras in use does not support sharded variables."""

from __future__ import annotations

from collections.abc import Callable

from tfdist.keras_compat.version import keras_in_use


def check_variable_partitioner(partitioner: Callable | None) -> None:
    """Raises ValueError if a partitioner is given and the Keras in use does not support sharded variables.

    Keras 3 reads the `handle` of a variable, which a ShardedVariable does not have (keras-team/keras#18624).

    Args:
        partitioner: the variable_partitioner of a parameter-server strategy, or None.
    """
    if partitioner is not None and keras_in_use().is_keras3:
        raise ValueError(
            "expected no variable_partitioner with Keras 3, whose variables cannot be sharded "
            "(keras-team/keras#18624), received a partitioner; leave it out, or use tf_keras (TF_USE_LEGACY_KERAS=1)."
        )
