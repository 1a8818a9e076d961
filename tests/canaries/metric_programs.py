"""Programs of canaries that show defects of losses, metrics and running means, for Keras 2 and Keras 3."""

from __future__ import annotations

# Three of the four rows are 1, so that the mean over the rows is 0.75.
MEAN_OF_MEANS = """
strategy = mirrored()
with strategy.scope():
    metric = keras.metrics.Mean()
batches = on_each_replica(lambda replica: tf.fill([1 + 2 * replica, 1], float(replica)))
strategy.run(lambda batch: metric.update_state(tf.reduce_mean(batch)), args=(batches,))
outcome(lambda: float(metric.result()))
"""

# The replicas have rows of 0 and of 1.
RUNNING_MEAN = """
class Running(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False, name="mean")

    def call(self, inputs, training=None):
        if training:
            self.mean.assign(tf.reduce_mean(inputs))
        return inputs


strategy = mirrored()
with strategy.scope():
    layer = Running()
batches = on_each_replica(lambda replica: tf.fill([2, 1], float(replica)))
strategy.run(lambda batch: layer(batch, training=True), args=(batches,))
variable = getattr(layer.mean, "_value", layer.mean)
outcome(lambda: [float(one) for one in strategy.experimental_local_results(variable)])
"""

DESCENT = """
strategy = mirrored()
with strategy.scope():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    layer.build((None, 1))


def descend(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(batch))
    weight = layer.trainable_weights[0]
    weight.assign_sub(tape.gradient(loss, weight))


strategy.run(descend, args=(on_each_replica(lambda replica: tf.fill([2, 1], float(replica))),))
variable = getattr(layer.kernel, "_value", layer.kernel)
outcome(lambda: [float(one[0, 0]) for one in strategy.experimental_local_results(variable)])
"""

WAITS_WITHIN_A_STEP = """
strategy = mirrored()


def wait():
    tf.distribute.get_replica_context().merge_call(lambda strategy: None)
    return 0


def is_refused(within):
    try:
        tf.function(lambda: strategy.run(within))()
    except RuntimeError as error:
        return "`merge_call` called" in str(error)
    return False


def in_a_condition():
    return tf.cond(tf.ones([]) > 0, wait, lambda: 0)


outcome(lambda: [is_refused(in_a_condition), is_refused(lambda: tf.function(wait)())])
"""

METRIC_OF_NO_ROWS = """
class MeanOfBatches(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="mean_of_batches")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(tf.cast(y_true, "float32")))

    def result(self):
        return self.total + 0.0


strategy = mirrored()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[MeanOfBatches()])
rows = tf.data.Dataset.from_tensor_slices((x[:5], y[:5])).batch(4)
outcome(lambda: model.evaluate(rows, verbose=0, return_dict=True)["mean_of_batches"])
"""

CTC_OF_NO_ROWS = """
labels, logits, lengths = tf.zeros([0, 1], tf.int32), tf.zeros([0, 2, 3]), tf.zeros([0], tf.int32)
if hasattr(keras, "ops"):
    outcome(lambda: keras.ops.ctc_loss(labels, logits, lengths, lengths).shape)
else:
    outcome(lambda: keras.backend.ctc_batch_cost(labels, logits, lengths[:, None], lengths[:, None]).shape)
"""
