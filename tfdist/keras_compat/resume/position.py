"""The position of a fit in its data, for the Keras in use."""

from __future__ import annotations

from typing import Any

from tfdist.keras_compat.version import keras_in_use


def watch_training_data() -> None:
    """Prepares Keras, so that training_data can be called in a later fit."""
    _of_keras().watch_training_data()


def training_data() -> Any:
    """Returns the TrainingData of the fit that this thread has begun; called by a callback's on_train_begin."""
    return _of_keras().training_data()


def _of_keras() -> Any:
    if keras_in_use().is_keras3:
        from tfdist.keras_compat.resume import position_keras3

        return position_keras3
    from tfdist.keras_compat.resume import position_keras2

    return position_keras2
