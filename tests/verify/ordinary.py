"""Programs as people write them, which verify has to leave as they are or to judge rightly: ordinary.py NAME."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import tfdist

strategy = tfdist.create_strategy()
import tensorflow as tf  # noqa: E402

keras, layers = tf.keras, tf.keras.layers
_rng = np.random.default_rng(0)
X = _rng.normal(size=(48, 6))
Y = X.sum(axis=1, keepdims=True)


def network(**of_last: Any) -> Any:
    return keras.Sequential([layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(1, **of_last)])


def trained(make: Any = network, x: np.ndarray = X, **options: Any) -> None:
    with strategy.scope():
        model = make()
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
    model.fit(x, x.sum(axis=1, keepdims=True), **{"batch_size": 16, "epochs": 3, **options})


def callbacks_with_files() -> None:
    saving = keras.callbacks.ModelCheckpoint("model.weights.h5", save_weights_only=True)
    going_on = [keras.callbacks.BackupAndRestore("backup"), tfdist.checkpoint.AutoResume("snapshots", every_steps=1)]
    trained(callbacks=[keras.callbacks.CSVLogger("log.csv"), saving, keras.callbacks.TensorBoard("board"), *going_on])


def loop(weights: list[Any], forward: Any, *, metric: Any = None) -> tuple[Any, Any, Any]:
    """Returns an optimizer, the data and the function of a step of a loop, which returns the loss of each replica."""
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(weights)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))

    @tf.function
    def train(batch: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.reduce_sum(tf.square(y - forward(x)), axis=-1)
                loss = tf.nn.compute_average_loss(rows, global_batch_size=16)
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            if metric is not None:
                metric.update_state(loss)
            return loss

        return strategy.run(step, args=batch)

    return optimizer, data, train


def resumable_loop() -> None:
    with strategy.scope():
        model = network()
    optimizer, data, train = loop(model.trainable_variables, model)
    objects = {"model": model, "optimizer": optimizer}
    with tfdist.checkpoint.ResumableLoop("snapshots", objects, strategy=strategy, every_steps=1) as resumable:
        for batch in resumable.batches(data, epochs=3):
            train(batch)
            resumable.step()


def loop_with_a_mean_of_divided_losses() -> None:
    with strategy.scope():
        model, metric = network(), keras.metrics.Mean(name="training_loss")
    _, data, train = loop(model.trainable_variables, model, metric=metric)
    for _ in range(2):
        for batch in data:
            train(batch)


def loop_that_reduces_divided_losses_to_their_mean() -> None:
    with strategy.scope():
        model = network()
    _, data, train = loop(model.trainable_variables, model)
    for _ in range(2):
        for batch in data:
            strategy.reduce("MEAN", train(batch), axis=None)


def loop_of_variables_without_a_model() -> None:
    with strategy.scope():
        kernel = tf.Variable(np.ones((6, 1)) * strategy.num_replicas_in_sync)
    _, data, train = loop([kernel], lambda x: x @ kernel)
    for _ in range(2):
        for batch in data:
            train(batch)


class Reading(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print(f"validation loss {logs['val_loss']:.3f}")


def callback_that_reads_the_validation() -> None:
    trained(x=X[:32], validation_data=(X[32:], Y[32:]), callbacks=Reading())


def mixed_precision() -> None:
    if hasattr(keras, "config"):
        keras.config.set_dtype_policy("mixed_bfloat16")
    else:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    trained(lambda: network(dtype="float32"))


def data_without_a_seed() -> None:
    trained(x=np.random.default_rng().normal(size=(48, 6)))


class Noise(layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs), dtype=inputs.dtype)


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.network = keras.Sequential([Noise(), network()])

    def call(self, inputs: Any) -> Any:
        return self.network(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        x += tf.random.uniform(tf.shape(x), dtype=x.dtype)
        x *= tf.cast(tf.random.uniform(tf.shape(x), 1, 4, tf.int32), x.dtype)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.network(x, training=True)))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def random_numbers_of_its_own() -> None:
    trained(Own)


def replicas_read_other_shuffled_rows() -> None:
    rows = np.roll(X, strategy.num_replicas_in_sync, axis=0)
    trained(x=rows, batch_size=8, shuffle=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    globals()[sys.argv[1]]()
