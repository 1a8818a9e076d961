"""A loop of one's own with strategy.run: the program divides by the global batch, as TensorFlow's tutorial does."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
EPOCHS = 2


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(16)
    data = batches((rng.normal(size=(ROWS, 8)), rng.integers(0, 3, size=ROWS)))
    with scope(strategy):
        inputs = layers.Input((8,))
        x = layers.Dense(8, activation="tanh", kernel_regularizer="l2")(inputs)
        model = keras.Model(inputs, layers.Dense(3)(x))
        optimizer = keras.optimizers.Adam(1e-2)
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        test_loss = keras.metrics.Mean(name="test_loss")
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    strategy = strategy or tf.distribute.get_strategy()

    def train_step(batch: Any, global_rows: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = tf.nn.compute_average_loss(loss_object(y, predictions), global_batch_size=global_rows)
            loss += tf.nn.scale_regularization_loss(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, predictions)
        return loss

    def test_step(batch: Any) -> None:
        x, y = batch
        test_loss.update_state(loss_object(y, model(x, training=False)))

    @tf.function
    def distributed_train_step(batch: Any) -> Any:
        rows = strategy.run(lambda inputs: tf.shape(inputs[1])[0], args=(batch,))
        rows = strategy.reduce(tf.distribute.ReduceOp.SUM, rows, axis=None)
        losses = strategy.run(train_step, args=(batch, rows))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def distributed_test_step(batch: Any) -> None:
        strategy.run(test_step, args=(batch,))

    distributed = strategy.experimental_distribute_dataset(data)
    losses, accuracies, tested = [], [], []
    for _ in range(EPOCHS):
        losses += [float(distributed_train_step(batch)) for batch in distributed]
        for batch in distributed:
            distributed_test_step(batch)
        accuracies.append(float(accuracy.result()))
        tested.append(float(test_loss.result()))
        for metric in (accuracy, test_loss):
            metric.reset_state()
    return results(model, losses=losses, accuracies=accuracies, tested=tested)
