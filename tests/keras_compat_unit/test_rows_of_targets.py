"""Graphs of each replica: a batch has one row of targets for each molecule, and one row of inputs for each atom."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf
import tfdist

keras = tf.keras
keras.backend.set_floatx("float64")
replicas = int(sys.argv[1])
strategy = tfdist.create_strategy("mirrored", devices=2) if replicas > 1 else tfdist.create_strategy("one_device")
rng = np.random.default_rng(0)
# Atoms of the molecules. The two replicas have 2 and 3, 1 and 2, and 1 and no molecules in the three batches.
SIZES = [[[1, 1], [2, 9, 1]], [[5], [6, 2]], [[7], []]]
BATCHES = [[[rng.normal(size=(n, 3)) for n in part] for part in batch] for batch in SIZES]
LABELS = [[rng.normal(size=(len(part), 1)) for part in batch] for batch in SIZES]
SPEC = (
    (tf.TensorSpec((None, 3), "float64"), tf.TensorSpec((None,), "int32")),
    tf.TensorSpec((None, 1), "float64"),
)


def graphs(parts, labels):
    sizes = [len(one) for one in parts]
    atoms = np.concatenate([np.zeros((0, 3)), *parts])
    return (atoms, np.repeat(np.arange(len(parts)), sizes).astype("int32")), np.concatenate(labels)


def elements():
    for parts, labels in zip(BATCHES, LABELS):
        if replicas == 1:
            yield graphs([one for part in parts for one in part], labels)
        else:
            for part, label in zip(parts, labels):
                yield graphs(part, [label])


class Pool(keras.layers.Layer):
    def call(self, inputs):
        return tf.math.segment_mean(*inputs)


def dataset(_=None):
    return tf.data.Dataset.from_generator(elements, output_signature=SPEC)


with strategy.scope():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,)), keras.Input((), dtype="int32")
    model = keras.Model(inputs, keras.layers.Dense(1)(Pool()(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])


def data():
    return dataset() if replicas == 1 else strategy.distribute_datasets_from_function(dataset)


history = [model.fit(data(), steps_per_epoch=3, verbose=0).history for _ in range(2)]
tested = model.evaluate(data(), steps=3, verbose=0, return_dict=True)
found = {f"{epoch} {name}": values[0] for epoch, logs in enumerate(history) for name, values in logs.items()}
weights = {str(i): float(tf.reduce_sum(weight)) for i, weight in enumerate(model.weights)}
print("RESULT", json.dumps({**found, **tested, **weights}))
"""


def result(children, replicas):
    finished = children.run(PROGRAM, replicas)
    assert "RESULT " in finished.out, finished.err
    return json.loads(finished.out.split("RESULT ")[1])


def test_replicas_count_by_the_rows_of_their_targets(children):
    expected = result(children, "1")
    assert len(expected) == 8
    assert result(children, "2") == pytest.approx(expected, rel=1e-10)
