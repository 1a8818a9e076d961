"""int(), float() and complex() read the variables of several replicas as they read those of one device."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.keras_compat.version import keras

X, Y = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
ON_READ = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}


def scope_of(name):
    return contextlib.nullcontext() if name is None else create_strategy(name, devices=2).scope()


def read_by_callbacks(name):
    """Returns what callbacks read with int() and float() while a model is trained for 4 steps."""
    read = []

    class Reading(keras().callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            optimizer = self.model.optimizer
            read.append((int(optimizer.iterations), float(optimizer.learning_rate)))
            optimizer.learning_rate = float(optimizer.learning_rate) / 2

    with scope_of(name):
        model = keras().Sequential([keras().layers.Input((4,)), keras().layers.Dense(1)])
        model.compile(keras().optimizers.SGD(0.5), "mse")
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[Reading()])
    return read


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_callbacks_read_the_numbers_of_one_device(name):
    read = read_by_callbacks(name)
    assert read == [(1, 0.5), (2, 0.25), (3, 0.125), (4, 0.0625)]
    assert read == read_by_callbacks(None)


@pytest.mark.parametrize("devices", [1, 2])
def test_each_kind_of_number_has_its_own_type(devices):
    with create_strategy("mirrored", devices=devices).scope():
        variable = tf.Variable(2.75, dtype="float64")
    assert (int(variable), type(int(variable))) == (2, int)
    assert (float(variable), type(float(variable))) == (2.75, float)
    assert (complex(variable), type(complex(variable))) == (2.75 + 0j, complex)
    # A function of Python that asks for a number.
    assert math.sqrt(variable) == math.sqrt(2.75)


def test_a_sum_over_replicas_is_read_whole():
    strategy = create_strategy("mirrored", devices=2)
    with strategy.scope():
        total = tf.Variable(0.0, **ON_READ)
    strategy.run(lambda: total.assign_add(1.5))
    assert float(total) == 3.0


def test_a_metric_has_numbers():
    with create_strategy("mirrored", devices=2).scope():
        metric = keras().metrics.Mean()
    assert float(metric.total) == 0.0


def test_a_vector_is_no_number_as_on_one_device():
    with create_strategy("mirrored", devices=2).scope():
        mirrored = tf.Variable([1.0, 2.0])
    for variable in (mirrored, tf.Variable([1.0, 2.0])):
        with pytest.raises(TypeError):
            int(variable)


def test_what_one_device_refuses_stays_refused():
    with create_strategy("mirrored", devices=2).scope():
        variable = tf.Variable(3)
    assert bool(variable)
    with pytest.raises(TypeError):
        range(variable)
