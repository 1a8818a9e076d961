"""Goes on with its next batch after an interruption: press Ctrl-C or kill the program, and start it again.

Look at `AutoResume`. The last line is the same with and without interruptions. After a complete run, remove the folder
`auto-resume` to train again.
Start the program:

    python examples/auto_resume.py
    tfdist launch --workers 2 --max-restarts 3 examples/auto_resume.py
"""

import zlib

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.checkpoint import AutoResume
from tfdist.workers import is_chief

strategy = tfdist.create_strategy()
# The order of the rows must be the same when the program starts again.
tf.keras.utils.set_random_seed(1)
if hasattr(tf.keras.backend, "experimental"):
    # Keras 2 (TF_USE_LEGACY_KERAS=1) keeps no state of Dropout's random numbers without this call.
    tf.keras.backend.experimental.enable_tf_random_generator()

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            # The random numbers of Dropout go on where they were, too.
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.002),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

# All workers share the folder. Without `every_steps`, AutoResume measures what a snapshot costs and chooses how often.
resume = AutoResume("auto-resume", every_steps=20)
# No loop, no check for a checkpoint: fit itself goes on where it was.
history = model.fit(images[:1400], labels[:1400], batch_size=32, epochs=10, verbose=0, callbacks=[resume])
result = model.evaluate(images[1400:], labels[1400:], batch_size=64, verbose=0, return_dict=True)

if is_chief(strategy):
    checksum = zlib.crc32(b"".join(weights.tobytes() for weights in model.get_weights()))
    epochs = len(history.history["loss"])
    print(f"accuracy {result['accuracy']:.4f} after {epochs} epochs, checksum of the weights {checksum:08x}")
