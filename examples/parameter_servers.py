"""Trains with parameter servers: a coordinator runs this program, workers compute steps independently of each other.

Look at `create_strategy`, which does not return on workers and parameter servers. Start the program:

    tfdist launch --workers 2 --ps 1 examples/parameter_servers.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist

# On a worker or parameter server, this call serves the coordinator until it is done, and then ends the process: what
# follows runs on the coordinator only. That is why nothing below asks for the chief.
strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target
# One worker takes a whole batch, and two workers make two steps at the same time. Steps are applied in the order in
# which they end, so that two runs do not end with the same weights.
train = tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400])).shuffle(1400, seed=1).batch(64)
test = tf.data.Dataset.from_tensor_slices((images[1400:], labels[1400:])).batch(64)

# The variables are made on the parameter servers.
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.005),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(train, epochs=8, verbose=2)
result = model.evaluate(test, verbose=0, return_dict=True)
steps = int(model.optimizer.iterations.numpy())
print(f"accuracy {result['accuracy']:.4f} after {steps} steps of any worker")
