"""Evaluates beside the training: the workers save the model after each epoch, and an evaluator evaluates each file.

Look at `is_evaluator`: all tasks run this program, and the evaluator takes another way. The workers do not wait for it.
Remove the folder `sidecar` before another run. Start the program:

    tfdist launch --workers 2 --evaluator examples/sidecar_evaluation.py
"""

import os
import time

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.cluster import ClusterConfig
from tfdist.saving import save_model

EPOCHS, WAIT_SECONDS = 4, 120.0

# The evaluator is not part of the cluster of workers: for it, this is the strategy of its own devices.
strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target

# All tasks make the same model.
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # The files also have the state of the optimizer, whose variables would otherwise be made in the first step.
    model.optimizer.build(model.trainable_variables)


def path_of(epoch):
    return f"sidecar/epoch-{epoch}.keras"


class SaveEachEpoch(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        # All workers call save_model, and the file appears when it is complete: the evaluator reads no half of it.
        save_model(self.model, path_of(epoch + 1))


def evaluate(epoch):
    """Waits for the model of an epoch, and returns its accuracy."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not os.path.exists(path_of(epoch)):
        # The workers may have failed: an evaluator must not wait for ever.
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {path_of(epoch)} within {WAIT_SECONDS:.0f} s, found none.")
        time.sleep(0.1)
    model.load_weights(path_of(epoch))
    return model.evaluate(images[1400:], labels[1400:], batch_size=64, verbose=0, return_dict=True)["accuracy"]


if ClusterConfig.detect().is_evaluator:
    accuracies = {epoch: evaluate(epoch) for epoch in range(1, EPOCHS + 1)}
    best = max(accuracies, key=accuracies.get)
    print(", ".join(f"epoch {epoch} {accuracy:.4f}" for epoch, accuracy in accuracies.items()))
    print(f"best accuracy {accuracies[best]:.4f} in {path_of(best)}")
else:
    model.fit(images[:1400], labels[:1400], batch_size=64, epochs=EPOCHS, verbose=0, callbacks=[SaveEachEpoch()])
