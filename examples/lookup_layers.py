"""Trains on dicts of columns with lookup and normalization layers: the width of an iris petal from text and numbers.

Look at `adapt`, which every worker calls with the same rows, and at the dicts that the model takes. Start the program:

    python examples/lookup_layers.py
    tfdist launch --workers 2 examples/lookup_layers.py
"""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_iris

import tfdist
from tfdist.workers import is_chief

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

iris = load_iris()
order = np.random.default_rng(1).permutation(150)
species, numbers = iris.target_names[iris.target][order], iris.data[order].astype("float32")
columns = {"species": species.astype(object), "sepal_length": numbers[:, 0], "sepal_width": numbers[:, 1]}
petal_width = numbers[:, 3]
train = {name: column[:100] for name, column in columns.items()}
test = {name: column[100:] for name, column in columns.items()}

with strategy.scope():
    lookup = tf.keras.layers.StringLookup(output_mode="one_hot")
    normalize = {name: tf.keras.layers.Normalization(axis=None) for name in ("sepal_length", "sepal_width")}
    # `adapt` reads all rows on every worker, so that all workers have the same vocabulary and the same means.
    lookup.adapt(train["species"])
    for name, layer in normalize.items():
        layer.adapt(train[name])

    inputs = {name: tf.keras.layers.Input((1,), name=name) for name in normalize}
    inputs["species"] = tf.keras.layers.Input((1,), dtype="string", name="species")
    features = [lookup(inputs["species"]), *(layer(inputs[name]) for name, layer in normalize.items())]
    hidden = tf.keras.layers.Dense(16, activation="relu")(tf.keras.layers.Concatenate()(features))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    model.compile(tf.keras.optimizers.Adam(0.02), "mse")


def batches(columns, targets):
    # A dataset and not arrays: Keras does not turn arrays of Python strings into tensors of text.
    columns = {name: tf.constant(column)[:, None] for name, column in columns.items()}
    return tf.data.Dataset.from_tensor_slices((columns, targets)).batch(10)


model.fit(batches(train, petal_width[:100]), epochs=12, verbose=0)
loss = model.evaluate(batches(test, petal_width[100:]), verbose=0)
if is_chief(strategy):
    print(f"explained variance {1 - loss / petal_width[100:].var():.4f}, mean squared error {loss:.4f} cm2")
