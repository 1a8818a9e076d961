"""Feeds fit from a tf.data pipeline that shuffles, augments and batches.

Look at the order of the pipeline, and at its seeds. Start the program:

    python examples/tf_data.py
    tfdist launch --workers 2 examples/tf_data.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.workers import is_chief

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target
train, test = slice(0, 1400), slice(1400, None)


def shifted(row, seed):
    """Moves an image by up to one pixel in each direction."""
    image, label = row
    # A stateless operation: the result depends on the seed alone, not on the worker or thread that computes it.
    padded = tf.pad(image, [[1, 1], [1, 1], [0, 0]])
    return tf.image.stateless_random_crop(padded, [8, 8, 1], seed=[seed, 0]), label


rows = tf.data.Dataset.from_tensor_slices((images[train], labels[train]))
# With a seed, all workers shuffle alike, so that each can take its part of the same global batch. Without a seed, they
# would train on some rows twice and on others not at all.
rows = rows.shuffle(1400, seed=1, reshuffle_each_iteration=True)
seeds = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
# The batch is the global batch. Do not divide it by the number of replicas: fit does.
training = tf.data.Dataset.zip((rows, seeds)).map(shifted).batch(64).prefetch(2)
held_out = tf.data.Dataset.from_tensor_slices((images[test], labels[test])).batch(64)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
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

model.fit(training, epochs=8, verbose=2 if is_chief(strategy) else 0)
result = model.evaluate(held_out, verbose=0, return_dict=True)
if is_chief(strategy):
    print(f"accuracy {result['accuracy']:.4f}, loss {result['loss']:.4f}")
