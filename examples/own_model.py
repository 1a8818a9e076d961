"""Trains a model of your own on numpy arrays, on one device or on several workers.

Look at `create_strategy`, at the scope in which the model is made, and at `save_model`. Start the program:

    python examples/own_model.py
    tfdist launch --workers 2 examples/own_model.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.saving import save_model
from tfdist.workers import is_chief

# Before any tensor, dataset or model is made. The same line gives one device, two GPUs, or the workers of TF_CONFIG.
strategy = tfdist.create_strategy()

# Every worker starts with the same weights and sees the rows in the same order.
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target
train, test = slice(0, 1400), slice(1400, None)

# The variables of the model and of its optimizer are made on all replicas, so both belong into the scope.
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

# Every worker has all arrays. `batch_size` is the number of rows of a step over all replicas; tfdist and TensorFlow
# give each replica its part of them. The last batch of an epoch is smaller, which changes nothing.
verbose = 2 if is_chief(strategy) else 0
model.fit(images[train], labels[train], batch_size=64, epochs=6, verbose=verbose)
result = model.evaluate(images[test], labels[test], batch_size=64, verbose=0, return_dict=True)

# All workers call save_model, because reading a variable may need all of them; only the chief writes the file.
save_model(model, "own-model/digits.keras")

# Every worker has the result of all rows. One worker prints it.
if is_chief(strategy):
    print(f"accuracy {result['accuracy']:.4f}, loss {result['loss']:.4f}")
