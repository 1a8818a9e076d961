"""An epoch of data that repeats without end: its steps are given, said by the data, or asked for in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.keras_compat.version import keras


@pytest.fixture
def model():
    strategy = create_strategy("one_device")
    with strategy.scope():
        model = keras().Sequential([keras().layers.Input((3,)), keras().layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def data(repeat):
    dataset = tf.data.Dataset.from_tensor_slices((np.ones([8, 3], np.float32), np.ones([8, 1], np.float32))).batch(4)
    return dataset.repeat() if repeat else dataset


def steps(model):
    return int(model.optimizer.iterations.numpy())


def distributed(model):
    return model.distribute_strategy.distribute_datasets_from_function(lambda context: data(repeat=True))


@pytest.mark.parametrize("make", [lambda model: data(repeat=True), distributed])
def test_data_that_does_not_say_its_steps_is_refused(make, model):
    with pytest.raises(ValueError, match="expected steps_per_epoch for data that repeats without end, received"):
        model.fit(make(model), verbose=0)
    assert steps(model) == 0
    model.fit(make(model), steps_per_epoch=3, epochs=2, verbose=0)
    assert steps(model) == 6


def test_data_that_says_its_steps_ends_its_epochs_and_goes_on_in_the_next(model):
    said = distributed(model)
    said.repeats, said.steps_per_epoch = True, 5
    model.fit(said, epochs=2, verbose=0)
    assert steps(model) == 10
    model.fit(said, steps_per_epoch=1, verbose=0)
    assert steps(model) == 11


def test_data_that_ends_is_read_to_its_end(model):
    model.fit(data(repeat=False), epochs=2, verbose=0)
    assert steps(model) == 4
