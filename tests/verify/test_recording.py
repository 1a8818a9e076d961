"""A record has the settings of a model, as far as the program says them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.verify.recording import config_of

keras = tf.keras


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without get_config, as in many programs: only saving needs it."""

    def __call__(self, step: Any) -> Any:
        return 0.5 ** tf.cast(step, "float32")


def compiled(learning_rate: Any) -> Any:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(learning_rate), "mse")
    return model


def test_a_schedule_without_a_config_is_no_error() -> None:
    assert config_of(compiled(Halved())) == {"optimizer": "SGD"}


def test_the_settings_of_an_optimizer_are_texts() -> None:
    assert "0.25" in config_of(compiled(0.25))["optimizer learning_rate"]
