"""Loads the files of save_files.py with LAMB of tfdist, and prints what has been loaded from each."""

import numpy as np
import tensorflow as tf

from tfdist.optimizers import LAMB


def make_model():
    """Returns a new model, whose optimizer has its variables."""
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
    model.compile(LAMB(0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"]), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def load_model(path):
    """Returns the model of a file, with LAMB of tfdist in place of that of Addons."""
    return tf.keras.models.load_model(path, custom_objects={"Addons>LAMB": LAMB})


def load_without_optimizer(path):
    """Returns the model of a file, compiled again."""
    model = tf.keras.models.load_model(path, compile=False)
    model.compile(LAMB(0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"]), "mse")
    return model


def load_weights(path):
    """Returns a new model with the weights of a file."""
    model = make_model()
    model.load_weights(path)
    return model


def restore(folder):
    """Returns a new model after a checkpoint was restored."""
    model = make_model()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(tf.train.latest_checkpoint(folder)).expect_partial()
    return model


for load, path in (
    (load_model, "model.h5"),
    (load_model, "model.keras"),
    (load_model, "saved_model"),
    (load_without_optimizer, "model.h5"),
    (load_without_optimizer, "model.keras"),
    (load_weights, "w.weights.h5"),
    (load_weights, "weights/w"),
    (restore, "checkpoint"),
):
    try:
        model = load(path)
        has_weights = np.array_equal(model.get_weights()[0], np.load("weight.npy"))
        steps = int(model.optimizer.iterations)
        # The next step fails with Keras 3 after some ways of loading.
        model.fit(np.ones([8, 3]), np.ones([8, 2]), verbose=0)
        result = f"weights {'loaded' if has_weights else 'NOT loaded'}, steps of the optimizer: {steps}"
    except Exception as error:
        result = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    print(f"{load.__name__} {path}: {result}", flush=True)
