"""A program of two workers that saves as programs for stock TensorFlow do: python saving_program.py FOLDER.

Every worker saves, all but the chief into folders of their own, which they remove. The program knows nothing of tfdist.
"""

import os
import sys

import numpy as np
import tensorflow as tf


def own_path(name, strategy, folder):
    resolver = strategy.cluster_resolver
    is_chief = resolver.task_type is None or resolver.task_id == 0
    path = folder if is_chief else os.path.join(folder, f"worker-{resolver.task_id}")
    tf.io.gfile.makedirs(path)
    return os.path.join(path, name), is_chief


def make_model():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3)])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return model


def main(folder):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(1)
    x, y = np.ones((64, 4), "float32"), np.ones((64, 3), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).repeat().batch(16)
    with strategy.scope():
        model = make_model()
    model.fit(dataset, epochs=2, steps_per_epoch=4, verbose=0)

    path, is_chief = own_path("model.keras", strategy, folder)
    model.save(path)
    if not is_chief:
        tf.io.gfile.rmtree(os.path.dirname(path))

    checkpoint = tf.train.Checkpoint(model=model)
    path, is_chief = own_path("checkpoint", strategy, folder)
    tf.train.CheckpointManager(checkpoint, directory=path, max_to_keep=1).save()
    if not is_chief:
        tf.io.gfile.rmtree(path)
    # A worker that has trained on knows that the chief has saved.
    model.fit(dataset, epochs=1, steps_per_epoch=4, verbose=0)
    checkpoint.restore(tf.train.latest_checkpoint(os.path.join(folder, "checkpoint"))).assert_existing_objects_matched()
    model.fit(dataset, epochs=1, steps_per_epoch=4, verbose=0)

    with strategy.scope():
        model = make_model()
    backup = tf.keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
    model.fit(dataset, epochs=2, steps_per_epoch=4, verbose=0, callbacks=[backup])
    print("SAVED", tf.keras.models.load_model(os.path.join(folder, "model.keras")).count_params())


if __name__ == "__main__":
    main(*sys.argv[1:])
