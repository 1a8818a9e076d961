"""Counts 200 steps of two workers on a parameter server, in a loop of its own, on stock Keras or with tfdist.

tfdist launch --workers 2 --ps 1 docs/migration/tf_distribute/counts.py stock
tfdist launch --workers 2 --ps 1 docs/migration/tf_distribute/counts.py tfdist
"""

import sys

import tensorflow as tf

STEPS = 200


def stock_strategy():
    """Returns the strategy on the coordinator. On a worker and a ps, serves until the launcher ends the process."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        ).join()
    return tf.distribute.ParameterServerStrategy(resolver)


if sys.argv[1] == "tfdist":
    import tfdist

    strategy = tfdist.create_strategy()
else:
    strategy = stock_strategy()

coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


@tf.function
def step():
    """Makes a step on a worker, with 8 rows of which the metric counts each as right."""

    def replica_step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([8, 4])) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        accuracy.update_state(tf.zeros([8, 1]), tf.one_hot(tf.zeros([8], tf.int32), 2))

    strategy.run(replica_step)


for _ in range(STEPS):
    coordinator.schedule(step)
coordinator.join()
rows = int(accuracy.count.numpy())
print(f"{int(optimizer.iterations.numpy())} of {STEPS} steps, {rows} of {8 * STEPS} rows, ", end="", flush=True)
print(f"accuracy {float(accuracy.result()):.4f}", flush=True)
