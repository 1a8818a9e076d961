"""Trains in mixed precision: layers compute in 16 bits, variables and the loss stay in 32 bits.

Look at the policy, at the dtype of the last layer, and at the loss scale. Start the program:

    python examples/mixed_precision.py
    tfdist launch --workers 2 examples/mixed_precision.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.workers import is_chief

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)
# Before the layers are made. On TPUs, and on GPUs with bfloat16, "mixed_bfloat16" needs no loss scale.
tf.keras.mixed_precision.set_global_policy("mixed_float16")

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            # The logits are in float32, since the loss sums exponentials.
            tf.keras.layers.Dense(10, dtype="float32"),
        ]
    )
    # `compile` wraps the optimizer in a LossScaleOptimizer. If a gradient of any replica is not finite, all replicas
    # skip the step and halve the scale, because they look at the sum of the gradients.
    model.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(images[:1400], labels[:1400], batch_size=64, epochs=6, verbose=2 if is_chief(strategy) else 0)
result = model.evaluate(images[1400:], labels[1400:], batch_size=64, verbose=0, return_dict=True)
if is_chief(strategy):
    layer = model.layers[0]
    scaling = type(model.optimizer).__name__
    print(f"accuracy {result['accuracy']:.4f}, {layer.compute_dtype} with {layer.variable_dtype} variables, {scaling}")
