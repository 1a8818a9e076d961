"""Trains in a loop of your own with strategy.run, by TensorFlow's rule: divide by the global batch, sum gradients.

Look at `compute_average_loss`, which divides, and at `reduce`, which sums. Start the program:

    python examples/custom_loop.py
    tfdist launch --workers 2 examples/custom_loop.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.workers import is_chief

GLOBAL_BATCH_SIZE = 64

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target
train = tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400])).shuffle(1400, seed=1)
test = tf.data.Dataset.from_tensor_slices((images[1400:], labels[1400:]))
# Every batch is divided among the replicas. Without drop_remainder, the gradient of the last, smaller batch would also
# be divided by 64.
train = strategy.experimental_distribute_dataset(train.batch(GLOBAL_BATCH_SIZE, drop_remainder=True))
test = strategy.experimental_distribute_dataset(test.batch(GLOBAL_BATCH_SIZE))

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    )
    optimizer = tf.keras.optimizers.Adam(0.01)
    # Before the loop, since variables cannot be made on the replicas while a step is traced.
    optimizer.build(model.trainable_variables)


def train_on_rows(x, y):
    """Runs on every replica with its rows, and returns its part of the loss of the global batch."""
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)
    gradients = tape.gradient(loss, model.trainable_variables)
    # The optimizer sums the gradients of all replicas.
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def count_on_rows(x, y):
    """Returns the number of rows of this replica, and how many of them are classified well."""
    is_right = tf.equal(tf.argmax(model(x), axis=1), tf.cast(y, tf.int64))
    return tf.size(is_right), tf.reduce_sum(tf.cast(is_right, tf.int32))


@tf.function
def train_step(batch):
    return strategy.reduce("SUM", strategy.run(train_on_rows, args=batch), axis=None)


@tf.function
def test_step(batch):
    return [strategy.reduce("SUM", counts, axis=None) for counts in strategy.run(count_on_rows, args=batch)]


for epoch in range(6):
    losses = [float(train_step(batch)) for batch in train]
    if is_chief(strategy):
        print(f"epoch {epoch + 1}, loss {sum(losses) / len(losses):.4f}")
rows, right = map(sum, zip(*((int(n), int(r)) for n, r in map(test_step, test)), strict=True))
if is_chief(strategy):
    print(f"accuracy {right / rows:.4f} of {rows} rows")
