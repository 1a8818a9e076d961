"""Trains with a large batch: LAMB, a learning rate that is scaled to the batch, warmup and decay.

Look at `create_optimizer`. Start the program:

    python examples/lamb_recipe.py
    tfdist launch --workers 2 examples/lamb_recipe.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.optimizers import create_optimizer, steps_per_epoch
from tfdist.workers import is_chief

GLOBAL_BATCH_SIZE, EPOCHS = 256, 16

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.LayerNormalization(),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = create_optimizer(
        "lamb",
        # The rate that suits a batch of 64. For LAMB, "auto" scales it with the square root of the batch: 0.02 here.
        learning_rate=0.01,
        learning_rate_scaling="auto",
        base_batch_size=64,
        global_batch_size=GLOBAL_BATCH_SIZE,
        # The first steps would be too large at this rate, which is why it grows from nearly 0 in the first epochs.
        warmup_epochs=2,
        learning_rate_decay="cosine",
        steps_per_epoch=steps_per_epoch(1400, global_batch_size=GLOBAL_BATCH_SIZE),
        epochs=EPOCHS,
        weight_decay=0.01,
        # Small vectors need neither weight decay nor a trust ratio.
        exclude_from_weight_decay=["bias", "normalization"],
    )
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

model.fit(images[:1400], labels[:1400], batch_size=GLOBAL_BATCH_SIZE, epochs=EPOCHS, verbose=0)
result = model.evaluate(images[1400:], labels[1400:], batch_size=GLOBAL_BATCH_SIZE, verbose=0, return_dict=True)
if is_chief(strategy):
    print(f"accuracy {result['accuracy']:.4f}, loss {result['loss']:.4f} after {optimizer.iterations.numpy()} steps")
