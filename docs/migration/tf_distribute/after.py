"""Trains a small convolutional network on the digits of scikit-learn, on the workers of TF_CONFIG."""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist

PER_WORKER_BATCH_SIZE = 64
MODEL = "digits.keras"


def make_dataset(batch_size):
    """Returns the digits in batches. The last batch is smaller than the rest."""
    digits = load_digits()
    images = tf.constant(digits.images[..., None] / 16, tf.float32)
    dataset = tf.data.Dataset.from_tensor_slices((images, digits.target))
    return dataset.shuffle(1797, seed=1).batch(batch_size)


def make_model():
    """Returns a compiled model."""
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
        optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


strategy = tfdist.create_strategy(all_reduce=tfdist.AllReduceOptions(algorithm="ring"))
num_workers = tfdist.workers.count_workers(strategy)
is_chief = tfdist.workers.is_chief(strategy)

dataset = make_dataset(PER_WORKER_BATCH_SIZE * num_workers)
with strategy.scope():
    model = make_model()

model.fit(
    dataset,
    epochs=3,
    callbacks=[tf.keras.callbacks.BackupAndRestore("backup")],
    verbose=2 if is_chief else 0,
)

# All workers have to save, but only the file of the chief is kept.
model.save(MODEL)
