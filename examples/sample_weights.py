"""Trains with weights of rows (sample_weight) and weights of classes (class_weight).

Look at the three calls of `fit`. A loss of the global batch is the weighted sum over all of its rows, divided by the
number of rows, as on one device: a replica whose rows all have weight 0 does no harm. Start the program:

    python examples/sample_weights.py
    tfdist launch --workers 2 examples/sample_weights.py
"""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.workers import is_chief

strategy = tfdist.create_strategy()

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target
x, y, test_x, test_y = images[:1200], labels[:1200].copy(), images[1200:], labels[1200:]
random = np.random.default_rng(1)

# Two faults of real data: one class is rare (of five images of an 8, one is kept), and many labels are wrong.
is_kept = (y != 8) | (random.random(1200) < 0.2)
x, y = x[is_kept], y[is_kept]
is_wrong = random.random(len(y)) < 0.6
y[is_wrong] = (y[is_wrong] + 1) % 10


def right(x, y, **weights):
    """Returns the share of test images, and of images of an 8, that a model classifies well after training."""
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((64,)), tf.keras.layers.Dense(10)])
        model.compile(tf.keras.optimizers.Adam(0.03), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=64, epochs=6, verbose=0, **weights)
    is_right = model.predict(test_x, batch_size=64, verbose=0).argmax(axis=1) == test_y
    return f"accuracy {is_right.mean():.4f}, of eights {is_right[test_y == 8].mean():.4f}"


results = {
    "no weights": right(x, y),
    # Rows that cannot be trusted have no weight.
    "sample_weight": right(x, y, sample_weight=np.where(is_wrong, 0.0, 1.0)),
    # Each 8 counts as much as ten other rows. Keras 3 takes either weights of rows or weights of classes.
    "class_weight": right(x[~is_wrong], y[~is_wrong], class_weight={**dict.fromkeys(range(10), 1.0), 8: 10.0}),
}
if is_chief(strategy):
    print("; ".join(f"{name}: {result}" for name, result in results.items()))
