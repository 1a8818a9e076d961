"""Trains a small convolutional network on the digits of scikit-learn."""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist


def train():
    """Trains the model, and returns it."""
    strategy = tf.distribute.get_strategy()
    size = strategy.num_replicas_in_sync

    digits = load_digits()
    images = tf.constant(digits.images[..., None] / 16, tf.float32)
    labels = tf.constant(digits.target, tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.repeat().shuffle(1797, seed=1).batch(64 * size)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )

    rate = tfdist.optimizers.LinearWarmup(0.002 * size, 2 * (56 // size), start=1 / size)
    optimizer = tf.keras.optimizers.Adam(rate)
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        optimizer=optimizer,
        metrics=["accuracy"],
    )

    callbacks = [
        tf.keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.keras"),
    ]

    verbose = 2 if tfdist.workers.is_chief(strategy) else 0
    model.fit(dataset, steps_per_epoch=56 // size, epochs=4, callbacks=callbacks, verbose=verbose)
    return model


if __name__ == "__main__":
    with tfdist.create_strategy().scope():
        train()
