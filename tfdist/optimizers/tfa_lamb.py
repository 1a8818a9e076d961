"""LAMB of TensorFlow Addons, by name: for programs that want its numbers on the leg that has it."""

from __future__ import annotations

from typing import Any


def tfa_lamb(learning_rate: Any, **options: Any) -> Any:
    """Returns tensorflow_addons.optimizers.LAMB.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        **options: of that optimizer.

    Raises:
        ValueError: if TensorFlow Addons is not installed, or exclusions are given as [] for its adaptation, which it
            takes for those of the decay.
    """
    try:
        import tensorflow_addons
    except ImportError as error:
        raise ValueError(
            f"expected TensorFlow Addons for tfa_lamb, received {error}; pip install 'tfdist[addons]', or take lamb."
        ) from error
    if options.get("exclude_from_layer_adaptation") == [] and options.get("exclude_from_weight_decay"):
        raise ValueError(
            "expected exclude_from_layer_adaptation that tfa_lamb keeps to, received [], which it takes for "
            f"{options['exclude_from_weight_decay']}; take lamb."
        )
    return tensorflow_addons.optimizers.LAMB(learning_rate, **options)
