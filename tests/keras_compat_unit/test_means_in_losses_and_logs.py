"""Means of a batch in compiled losses with a mask, in logs of a model within a model, and as a target of one entry."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat import keras_in_use

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
layers = keras.layers
BATCH, STEPS, WORDS = 16, 6, 5
RANDOM = np.random.default_rng(0)


def check(program: Callable[[], dict[str, Any]]) -> None:
    """Compares what a program returns on one device and on two replicas."""
    found = []
    for strategy in (None, tfdist.create_strategy("mirrored", devices=2)):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            found.append(program())
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, rtol=1e-10, atol=1e-12, err_msg=name)


def batches(*arrays: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


def entropies(y: Any, p: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def mean(y: Any, p: Any) -> Any:
    return tf.reduce_mean(entropies(y, p))


def half_a_mean(y: Any, p: Any) -> Any:
    losses = entropies(y, p)
    return 0.5 * tf.reduce_sum(losses) / tf.cast(tf.shape(losses)[0], losses.dtype)


def mean_over_a_mask(y: Any, p: Any) -> Any:
    is_valid = tf.cast(y > 0, p.dtype)
    return tf.reduce_sum(entropies(y, p) * is_valid) / tf.reduce_sum(is_valid)


@pytest.mark.parametrize("loss", [mean, half_a_mean, mean_over_a_mask, "sparse_categorical_crossentropy"])
def test_a_compiled_loss_behind_a_mask_is_that_of_one_device(loss: Any) -> None:
    words = RANDOM.integers(1, WORDS, (57, STEPS))
    for row, length in zip(words, RANDOM.integers(1, STEPS + 1, 57), strict=True):
        row[length:] = 0
    # For a mean over a mask of its own, a program has to give the mask of Keras.
    data = batches(words, words)

    def program() -> dict[str, Any]:
        inputs = layers.Input((STEPS,), dtype="int64")
        states = layers.LSTM(4, return_sequences=True)(layers.Embedding(WORDS, 4, mask_zero=True)(inputs))
        model = keras.Model(
            inputs, layers.Dense(WORDS, activation="softmax" if isinstance(loss, str) else None)(states)
        )
        model.compile(optimizer=keras.optimizers.SGD(0.5), loss=loss)
        history = model.fit(data, verbose=0).history["loss"]
        return {"loss": history, "weights": model.get_weights()[-2], "evaluate": model.evaluate(data, verbose=0)}

    check(program)


class Outer(keras.Model):
    """Trains a compiled model, and returns what its metrics say."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([layers.Input((4,)), layers.Dense(1, activation="sigmoid")])

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            output = self.inner(x, training=True)
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, output))
        variables = self.inner.trainable_variables
        self.inner.optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
        if keras_in_use().name == "keras3":
            results = self.inner.compute_metrics(x, y, output, None)
        else:
            self.inner.compiled_metrics.update_state(y, output)
            results = {one.name: one.result() for one in self.inner.metrics}
        return {f"inner_{name}": value for name, value in results.items() if name != "loss"}


def test_logs_of_the_metrics_of_a_model_within_a_model_are_those_of_one_device() -> None:
    # The last batch has one row, so that one replica has none.
    data = batches(RANDOM.normal(size=(65, 4)), RANDOM.integers(0, 2, (65, 1)).astype(float))

    def program() -> dict[str, Any]:
        model = Outer()
        metrics = ["accuracy", keras.metrics.AUC(name="auc")]
        model.inner.compile(optimizer=keras.optimizers.SGD(0.1), loss="binary_crossentropy", metrics=metrics)
        model.compile(optimizer=keras.optimizers.SGD(0.1))
        return model.fit(data, verbose=0, epochs=2).history

    check(program)


class WithLoss(keras.Model):
    """A model of transformers: its call returns the loss, which `compile` only passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(3)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        logits = self.head(inputs["x"])
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        return tf.reshape(tf.reduce_mean(losses(inputs["labels"], logits)), (1,)), logits

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss, _ = self(data, training=True)
            total = self.compiled_loss(loss, loss, None, regularization_losses=self.losses)
        self.optimizer.minimize(total, self.trainable_variables, tape=tape)
        return {one.name: one.result() for one in self.metrics}


@pytest.mark.skipif(keras_in_use().name == "keras3", reason="Keras 3 has no compiled_loss")
def test_each_batch_counts_alike_in_a_loss_with_a_target_of_one_entry() -> None:
    arrays = {"x": RANDOM.normal(size=(60, 4)), "labels": RANDOM.integers(0, 3, 60)}
    data = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)

    def program() -> dict[str, Any]:
        model = WithLoss()
        model.compile(optimizer=keras.optimizers.SGD(0.5), loss=lambda target, output: output)
        history = model.fit(data, epochs=2, verbose=0).history["loss"]
        return {"loss": history, "weights": model.get_weights()[0]}

    check(program)
