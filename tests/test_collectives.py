"""Losses over the gathered rows of all replicas have the value and the gradients of one device."""

from __future__ import annotations

import json

import pytest

from tfdist.collectives import all_gather

PROGRAM = """
import contextlib, json, sys
import numpy as np
from tfdist import create_strategy

strategy = create_strategy("mirrored", devices=int(sys.argv[1]))
import tensorflow as tf
from tfdist.collectives import all_gather

keras = tf.keras
keras.backend.set_floatx("float64")
rng = np.random.default_rng(0)
x, y = rng.normal(size=(53, 6)), rng.normal(size=(53, 3))


class Contrastive(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            similarities = tf.matmul(all_gather(self.dense(x)), all_gather(y), transpose_b=True)
            rows = tf.reduce_logsumexp(similarities, 1) - tf.linalg.diag_part(similarities)
            loss = tf.reduce_mean(rows)
        weights = self.dense.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def trained(scope):
    keras.utils.set_random_seed(1)
    with scope:
        model = Contrastive()
        model.compile(keras.optimizers.SGD(0.05))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    return [*losses, *np.concatenate([np.ravel(weight) for weight in model.get_weights()])]


print("RESULT", json.dumps([trained(contextlib.nullcontext()), trained(strategy.scope())]))
"""


@pytest.mark.parametrize("replicas", ["2", "4"])
def test_a_contrastive_loss_over_gathered_rows_trains_as_on_one_device(replicas, children):
    out = children.run(PROGRAM, replicas).out
    expected, found = json.loads(out.split("RESULT ")[1].splitlines()[0])
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_a_scalar_is_refused():
    message = r"expected a tensor with rows for all_gather, received a scalar; add an axis\."
    with pytest.raises(ValueError, match=message):
        all_gather(1.0)
