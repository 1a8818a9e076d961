"""Trains a small network on the digits of scikit-learn with LAMB."""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist

digits = load_digits()
images = digits.data.astype("float32") / 16

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(64, activation="relu", name="hidden"),
        tf.keras.layers.Dense(10, name="logits"),
    ]
)
optimizer = tfdist.optimizers.LAMB(
    0.02,
    weight_decay=0.01,
    exclude_from_weight_decay=["bias"],
    exclude_from_adaptation=["logits/bias", "hidden/bias"],
)
model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(images, digits.target, batch_size=256, epochs=10, shuffle=False, verbose=2)
model.save("digits.keras")
