"""What DistributedOptimizer sends: small and sparse gradients uncompressed, nothing on one device."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.replicas import on_two_replicas
from tfdist import AllReduceOptions
from tfdist.allreduce import ErrorFeedback, TopK
from tfdist.allreduce.options_of import options_of_path
from tfdist.optimizers import DistributedOptimizer

SMALL = """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((40,)), tf.keras.layers.Dense(1)])
    options = AllReduceOptions(compression="topk")
    model.compile(DistributedOptimizer(tf.keras.optimizers.SGD(), all_reduce=options), "mse")
    model.fit(data(), verbose=0)
    traffic = gradient_traffic(model.optimizer)
    say("traffic of small gradients", [traffic.steps, traffic.sent, traffic.uncompressed])
"""

SPARSE = """
with strategy.scope():
    losses = {}
    for compression in ("none", "fp16"):
        tf.keras.utils.set_random_seed(0)
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Input((3,), dtype="int32"), layers.Embedding(50, 8), layers.Flatten(), layers.Dense(1)])
        all_reduce = AllReduceOptions(compression=compression)
        model.compile(DistributedOptimizer(tf.keras.optimizers.SGD(0.1), all_reduce=all_reduce), "mse")
        tokens = np.random.default_rng(0).integers(0, 50, size=(64, 3)).astype("int32")
        rows = tf.data.Dataset.from_tensor_slices((tokens, y)).batch(16)
        model.fit(rows, epochs=2, verbose=0)
        say(f"sparse, {compression}", weights(model))
"""

SCALED = """
from tfdist.keras_compat import keras_in_use
with strategy.scope():
    outer = tf.keras.optimizers.LossScaleOptimizer if keras_in_use().is_keras3 else (
        tf.keras.mixed_precision.LossScaleOptimizer)
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((40,)), layers.Dense(64, "relu"), layers.Dense(32), layers.Dense(1)])
    optimizer = outer(tf.keras.optimizers.SGD(0.05))
    assert DistributedOptimizer(optimizer, all_reduce=AllReduceOptions(compression="topk:0.05")) is optimizer
    model.compile(optimizer, "mse")
    model.fit(data(), verbose=0)
    say("steps with a loss scale", gradient_traffic(model.optimizer).steps)
"""

PROGRAM = SMALL + SPARSE + SCALED


@pytest.fixture(scope="module")
def said(module_children, tmp_path_factory):
    """What a process with two replicas said."""
    (said,) = on_two_replicas(module_children, PROGRAM, tmp_path_factory.mktemp("said"), workers=1)
    return said


def test_what_is_too_small_to_compress_is_counted(said):
    # 41 elements, whose bytes each of two replicas sends once.
    assert said["traffic of small gradients"] == [4, 4 * 41 * 4, 4 * 41 * 4]


def test_sparse_gradients_go_as_they_are(said):
    tokens = np.random.default_rng(0).integers(0, 50, size=(64, 3)).astype("int32")
    rng = np.random.default_rng(0)
    rng.normal(size=(64, 40))
    y = rng.normal(size=(64, 1)).astype("float32")
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((3,), dtype="int32"), layers.Embedding(50, 8), layers.Flatten(), layers.Dense(1)]
    )
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    model.fit(tokens, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for compression, tolerance in (("none", 1e-5), ("fp16", 5e-3)):
        for one, other in zip(said[f"sparse, {compression}"], model.get_weights(), strict=True):
            assert np.abs(np.array(one) - other.ravel()).max() <= tolerance * np.abs(other).max()


def test_a_loss_scale_optimizer_can_be_wrapped_too(said):
    assert said["steps with a loss scale"] == 4


def test_one_device_has_nothing_to_send():
    rows = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")
    found = []
    for wrap in (
        lambda one: one,
        lambda one: DistributedOptimizer(one, all_reduce=AllReduceOptions(compression="topk")),
    ):
        tf.keras.utils.set_random_seed(0)
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Input((64,)), layers.Dense(64), layers.Dense(1)])
        model.compile(wrap(tf.keras.optimizers.SGD(0.1)), "mse")
        model.fit(rows, rows[:, :1], epochs=2, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_options_are_the_strategys_unless_given():
    of_strategy = AllReduceOptions(algorithm="ring", compression="fp16")
    assert options_of_path(None, of_strategy) is of_strategy
    asked = AllReduceOptions(algorithm="ring", compression=ErrorFeedback(TopK(0.1)))
    assert options_of_path(asked, of_strategy) == asked
    together = AllReduceOptions(algorithm="ring", compression="fp16", bytes_per_pack=100)
    assert options_of_path(AllReduceOptions(bytes_per_pack=100), of_strategy) == together
    assert options_of_path(AllReduceOptions(compression="none"), of_strategy).compressor is None
