"""Trains a small convolutional network on the digits of scikit-learn."""

import sys

import horovod
import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits


def train():
    """Trains the model, and returns it."""
    hvd.init()

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    digits = load_digits()
    images = tf.constant(digits.images[..., None] / 16, tf.float32)
    labels = tf.constant(digits.target, tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.repeat().shuffle(1797).batch(64)

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

    rate = 0.002 * hvd.size()
    optimizer = tf.keras.optimizers.Adam(rate)
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=1, average_aggregated_gradients=True)
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        optimizer=optimizer,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )

    callbacks = [
        # All processes begin with the weights of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        # The rate grows from that of one process in two epochs.
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2, verbose=1),
    ]
    # Only rank 0 writes checkpoints.
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.keras"))

    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(dataset, steps_per_epoch=56 // hvd.size(), epochs=4, callbacks=callbacks, verbose=verbose)
    return model


if __name__ == "__main__":
    if len(sys.argv) == 2:
        # python program.py 2 starts two processes; horovodrun -np 2 python program.py does the same.
        horovod.run(train, np=int(sys.argv[1]))
    else:
        train()
