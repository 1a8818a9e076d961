"""Programs with one planted error each, which make replicas compute other numbers than one device: planted.py NAME."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tfdist

strategy = tfdist.create_strategy()
import tensorflow as tf  # noqa: E402

keras, layers = tf.keras, tf.keras.layers
BATCH = 16
_rng = np.random.default_rng(0)
X = _rng.normal(size=(90, 6))
Y = X.sum(axis=1, keepdims=True) + 0.1 * _rng.normal(size=(90, 1))


def network(*hidden: Any) -> Any:
    return keras.Sequential([layers.Input((6,)), layers.Dense(8, activation="tanh"), *hidden, layers.Dense(1)])


class Own(keras.Model):
    """A model with a train_step of its own; subclasses define `loss_of`."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, inputs: Any) -> Any:
        return self.network(inputs)

    def loss_of(self, y: Any, outputs: Any) -> Any:
        return tf.reduce_mean(tf.square(y - outputs))

    def gradients(self, tape: Any, loss: Any) -> list[Any]:
        return tape.gradient(loss, self.network.trainable_weights)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self.network(x, training=True))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(self.gradients(tape, loss), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self.tracker.update_state(self.loss_of(y, self.network(x)))
        return {"loss": self.tracker.result()}


def trained(make: Callable[[], Any], *data: Any, rate: float = 0.05, **options: Any) -> None:
    with strategy.scope():
        model = make()
        model.compile(keras.optimizers.SGD(rate), **({} if isinstance(model, Own) else {"loss": "mse"}))
    model.fit(*(data or (X, Y)), **({"batch_size": BATCH, "shuffle": False} if not data else {}), **options)


def batch_normalization() -> None:
    trained(lambda: network(layers.BatchNormalization()))


def dropout() -> None:
    trained(lambda: network(layers.Dropout(0.5, seed=1)))


def sum_of_rows() -> None:
    class Model(Own):
        def loss_of(self, y: Any, outputs: Any) -> Any:
            return 0.01 * tf.reduce_sum(tf.square(y - outputs))

    trained(Model)


def division_by_a_constant() -> None:
    class Model(Own):
        def loss_of(self, y: Any, outputs: Any) -> Any:
            return tf.reduce_sum(tf.square(y - outputs)) / BATCH

    trained(Model)


def mixed_division() -> None:
    class Model(Own):
        def loss_of(self, y: Any, outputs: Any) -> Any:
            rows = tf.reduce_mean(tf.square(y - outputs), axis=-1)
            # The first loss is divided for all replicas, and the second is not.
            return 0.5 * tf.nn.compute_average_loss(rows, global_batch_size=BATCH) + tf.reduce_mean(rows)

    trained(Model)


def same_rows_on_all_workers() -> None:
    def everything(context: Any) -> Any:
        size = context.get_per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)

    trained(network, strategy.distribute_datasets_from_function(everything), steps_per_epoch=5)


def batch_for_each_replica() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8 * strategy.num_replicas_in_sync)
    trained(network, data)


def scaled_learning_rate() -> None:
    trained(network, rate=0.05 * strategy.num_replicas_in_sync)


def own_statistics() -> None:
    class Standardize(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs / (tf.math.reduce_std(inputs, axis=0, keepdims=True) + 0.1)

    trained(lambda: network(Standardize()))


def contrastive_loss() -> None:
    class Model(Own):
        def loss_of(self, y: Any, outputs: Any) -> Any:
            similarities = tf.matmul(outputs, y, transpose_b=True)
            return tf.reduce_mean(
                tf.linalg.diag_part(tf.reduce_logsumexp(similarities, 1, keepdims=True) - similarities)
            )

    trained(Model)


def gradients_clipped_before_the_sum() -> None:
    class Model(Own):
        def gradients(self, tape: Any, loss: Any) -> list[Any]:
            return tf.clip_by_global_norm(super().gradients(tape, loss), 0.1)[0]

    trained(Model)


def initial_weights_of_each_topology() -> None:
    def make() -> Any:
        scale = keras.initializers.Constant(1.0 / strategy.num_replicas_in_sync)
        return network(layers.Dense(4, kernel_initializer=scale))

    trained(make)


def loop_without_division() -> None:
    with strategy.scope():
        model, optimizer = network(), keras.optimizers.SGD(0.05)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH))

    @tf.function
    def train(batch: Any) -> None:
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x)))
            weights = model.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        strategy.run(step, args=batch)

    for batch in data:
        train(batch)


def other_rows_on_batch() -> None:
    rng = np.random.default_rng(strategy.num_replicas_in_sync)
    with strategy.scope():
        model = network()
        model.compile(keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    for _ in range(6):
        rows = rng.choice(len(X), size=BATCH, replace=False)
        model.train_on_batch(X[rows], Y[rows])


def bias_before_normalization() -> None:
    """The gradient of the bias is zero but for rounding, and Adam makes steps of it."""
    with strategy.scope():
        model = network(layers.Dense(8), tfdist.layers.SyncBatchNormalization())
        model.compile(keras.optimizers.Adam(0.05, epsilon=1e-14), loss="mse")
    model.fit(X, Y, batch_size=BATCH, shuffle=False)


def equal() -> None:
    trained(Own)


def equal_in_float32() -> None:
    with strategy.scope():
        model = network()
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
        # Weights of this layer are float32 in any case, and adding them to float64 is an error.
        kernel = tf.Variable(tf.ones([6, 6], tf.float32))
    x = tf.matmul(tf.cast(X, keras.backend.floatx()), kernel).numpy()
    model.fit(x, Y, batch_size=BATCH, shuffle=False)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    globals()[sys.argv[1]]()
