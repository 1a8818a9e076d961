"""Trains with batch normalization over the global batch: eight rows are too few for the statistics of a replica.

Look at `SyncBatchNormalization`. `tfdist.layers.convert_sync_batchnorm(model)` changes a model that is not yours, and
`create_strategy(sync_batch_norm=True)` every model of a program. Start the program:

    python examples/sync_batch_norm.py
    tfdist launch --workers 2 examples/sync_batch_norm.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.layers import SyncBatchNormalization
from tfdist.workers import is_chief

# With two workers, a replica has four rows of a step. BatchNormalization would normalize by these four rows.
GLOBAL_BATCH_SIZE = 8

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, use_bias=False),
            # A higher momentum would need more steps than this short training has.
            SyncBatchNormalization(momentum=0.9),
            tf.keras.layers.Activation("relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        tf.keras.optimizers.SGD(0.05),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(images[:1400], labels[:1400], batch_size=GLOBAL_BATCH_SIZE, epochs=2, verbose=2 if is_chief(strategy) else 0)
result = model.evaluate(images[1400:], labels[1400:], batch_size=64, verbose=0, return_dict=True)
# The statistics are those of one device, so that every number of workers prints the same line.
mean = tf.reduce_mean(model.layers[1].moving_variance).numpy()
if is_chief(strategy):
    print(f"accuracy {result['accuracy']:.4f}, loss {result['loss']:.4f}, mean of the moving variance {mean:.4f}")
