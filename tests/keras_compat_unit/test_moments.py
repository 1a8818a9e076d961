"""Synchronized BatchNormalization keeps its digits, and has the moments of masked data that one device has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat.layers.global_moments import global_moments
from tfdist.layers import SyncBatchNormalization

keras = tf.keras
layers = keras.layers
RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize(("name", "options"), [("mirrored", {"devices": 2}), ("one_device", {})])
def test_features_far_from_zero_train_as_on_one_device_in_float32(name: str, options: dict[str, Any]) -> None:
    far = (RANDOM.normal(size=(64, 3)) + np.array([0.0, 1e4, 2e4])).astype("float32")
    target = (far - far.mean(0)).sum(1, keepdims=True)

    def losses() -> list[float]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([layers.Input((3,)), layers.BatchNormalization(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model.fit(far, target, batch_size=32, epochs=4, shuffle=False, verbose=0).history["loss"]

    expected = losses()
    with tfdist.create_strategy(name, sync_batch_norm=True, **options).scope():
        # With the mean of squares minus the square of the mean the losses are 7e9 and NaN.
        np.testing.assert_allclose(losses(), expected, rtol=5e-3)


@pytest.mark.parametrize("kind", ["tfdist", "keras"])
def test_masked_moments_are_those_of_one_device(kind: str) -> None:
    inputs = RANDOM.normal(size=(8, 5, 3))
    mask = RANDOM.random(size=(8, 5)) < 0.6

    def applied(layer: Any, rows: slice) -> Any:
        return layer(tf.constant(inputs[rows]), training=True, mask=tf.constant(mask[rows]))

    alone = layers.BatchNormalization(momentum=0.5, dtype="float64")
    expected = applied(alone, slice(None)).numpy()
    strategy = tfdist.create_strategy("mirrored", devices=2)
    with strategy.scope():
        own = SyncBatchNormalization if kind == "tfdist" else layers.BatchNormalization
        layer = own(momentum=0.5, dtype="float64", synchronized=True)
        layer.build((None, 5, 3))

    def step() -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        # Replicas with different numbers of rows.
        first, last = tf.cast(replica * 3, tf.int32), tf.cast(3 + replica * 5, tf.int32)
        return layer(tf.constant(inputs)[first:last], training=True, mask=tf.constant(mask)[first:last])

    found = np.concatenate([np.asarray(one) for one in strategy.experimental_local_results(strategy.run(step))])
    np.testing.assert_allclose(found[mask], expected[mask], rtol=1e-12, atol=1e-12)
    with strategy.scope():
        for one, other in zip(layer.non_trainable_variables, alone.non_trainable_variables, strict=True):
            np.testing.assert_allclose(np.asarray(one.numpy()), np.asarray(other.numpy()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 1e-7, 0.5])
def test_moments_and_their_gradients_are_those_of_the_plain_formula(epsilon: float) -> None:
    inputs, weights = RANDOM.normal(size=(7, 3)) + 5, (RANDOM.random(size=(7, 1)) < 0.7).astype("float64")
    slope = RANDOM.normal(size=(2, 1, 3))
    results = []
    for is_plain in (True, False):
        with tf.GradientTape() as tape:
            x = tf.constant(inputs)
            tape.watch(x)
            if is_plain:
                divisor = tf.reduce_sum(weights) + epsilon
                mean = tf.reduce_sum(x * weights, 0, keepdims=True) / divisor
                variance = tf.reduce_sum(weights * tf.square(x - mean), 0, keepdims=True) / divisor
            else:
                found = global_moments(x, [0], tf.constant(weights), epsilon=epsilon)
                mean, variance = found.mean, found.variance
            total = tf.reduce_sum(mean * slope[0] + variance * slope[1])
        results.append([mean, variance, tape.gradient(total, x)])
    for plain, own in zip(*results, strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-12, atol=1e-12)


def test_moments_of_no_rows_are_zeros() -> None:
    found = global_moments(tf.zeros([0, 2]), [0])
    assert found.mean.numpy().tolist() == found.variance.numpy().tolist() == [[0.0, 0.0]]
