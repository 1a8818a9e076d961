"""The LAMB of TensorFlow Addons, for programs that need exactly its results."""

from __future__ import annotations

from typing import Any


def tfa_lamb(learning_rate: Any, **options: Any) -> Any:
    """Returns tensorflow_addons.optimizers.LAMB.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        **options: arguments of the LAMB of TensorFlow Addons.

    Raises:
        ValueError: if TensorFlow Addons is not installed, and for exclude_from_layer_adaptation=[], which TensorFlow
            Addons replaces by the patterns of exclude_from_weight_decay.
    """
    try:
        import tensorflow_addons
    except ImportError as error:
        raise ValueError(
            f"expected TensorFlow Addons for tfa_lamb, received {error}; pip install '.[addons]' in a checkout of "
            "tfdist, or use lamb."
        ) from error
    if options.get("exclude_from_layer_adaptation") == [] and options.get("exclude_from_weight_decay"):
        raise ValueError(
            "expected exclude_from_layer_adaptation to hold patterns for tfa_lamb, received [], which TensorFlow "
            f"Addons replaces by {options['exclude_from_weight_decay']}; use lamb."
        )
    return tensorflow_addons.optimizers.LAMB(learning_rate, **options)
