"""The canaries of Keras 2: tf_keras, and the Keras 2.15 of TensorFlow 2.15."""

from __future__ import annotations

from tests.canaries import data_programs, stock
from tests.canaries.stock import Canary

CANARIES = (
    *stock.COMMON,
    Canary(
        mends=("parameter_server_fit_keras2",),
        shows="fit fails on parameter servers",
        program=stock.FIT_ON_PARAMETER_SERVERS,
        outcome="[chief 0] OUTCOME raised",
        launch=("--workers", "2", "--ps", "1"),
    ),
    Canary(
        mends=("batch_logs_summed_over_workers",),
        shows="logs of workers are added up",
        program="""
strategy = tf.distribute.MultiWorkerMirroredStrategy()
model = model_of(kernel_initializer="zeros")
model.compile(keras.optimizers.SGD(0.0), "mse")
losses = []
recorder = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"])))
model.fit(data(), verbose=0, callbacks=[recorder])
outcome(lambda: losses[0])
""",
        # The loss of predictions of 0 for targets of 1 is 1.
        outcome="[worker 0] OUTCOME 2.0",
        launch=("--workers", "2"),
    ),
    Canary(
        mends=("loss_divided_by_replicas_keras2",),
        shows="replicas with different numbers of rows have the same weight",
        program=stock.UNEVEN_LAST_BATCH,
        outcome=stock.UNEVEN_LAST_BATCH_OUTCOME,
    ),
    Canary(
        mends=("loss_called_on_one_replica",),
        shows="a Loss object cannot be called under a strategy",
        program="""
with tf.distribute.OneDeviceStrategy("/CPU:0").scope():
    outcome(lambda: float(keras.losses.MeanSquaredError()(y, y)))
""",
        outcome="OUTCOME raised ValueError",
    ),
    Canary(
        mends=("assigned_without_aggregation",),
        shows="on central storage, replicas cannot assign a weight",
        program="""
strategy = central_storage()
with strategy.scope():
    layer = keras.layers.Dense(1)
    layer.build((None, 4))
outcome(lambda: strategy.run(lambda: layer.bias.assign(layer.bias + 1.0)))
""",
        outcome="OUTCOME raised ValueError",
    ),
    Canary(
        mends=("assigned_without_aggregation",),
        shows="on central storage, a metric that assigns its total adds the old total twice",
        program="""
strategy = central_storage()
with strategy.scope():
    metric = keras.metrics.Mean()
for _ in range(2):
    strategy.run(lambda: metric.total.assign(metric.total + 1.0))
outcome(lambda: float(metric.total))
""",
        # Two replicas add 1 twice each, so that the total should be 4.
        outcome="OUTCOME 6.0",
    ),
    Canary(
        mends=("batch_statistics_read_locally",),
        shows="each replica predicts with statistics of its own",
        program="""
strategy = mirrored()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.BatchNormalization(momentum=0.0)])
batches = on_each_replica(lambda replica: tf.fill([2, 1], float(replica)))
strategy.run(lambda batch: model(batch, training=True), args=(batches,))
# Both replicas get the same row.
first, second = model.predict(np.zeros([2, 1], "float32"), batch_size=2, verbose=0)[:, 0]
outcome(lambda: bool(abs(first - second) < 0.1))
""",
        outcome="OUTCOME False",
    ),
    Canary(
        mends=("statistics_of_an_empty_replica",),
        shows="a replica without rows does not update its synchronized statistics",
        program="""
strategy = mirrored()
with strategy.scope():
    layer = keras.layers.BatchNormalization(momentum=0.0, synchronized=True)
    layer.build((None, 1))
batches = on_each_replica(lambda replica: tf.ones([replica, 1]))
strategy.run(lambda batch: layer(batch, training=True), args=(batches,))
outcome(lambda: round(float(layer.moving_mean.numpy()[0]), 3))
""",
        # The only row is 1, so the mean of the global batch is 1.
        outcome="OUTCOME 0.5",
    ),
    Canary(
        mends=("statistics_of_an_empty_replica",),
        shows="a replica without rows makes the statistics on central storage NaN",
        program="""
strategy = central_storage()
with strategy.scope():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 1))
batches = on_each_replica(lambda replica: tf.ones([replica, 1]))
strategy.run(lambda batch: layer(batch, training=True), args=(batches,))
outcome(lambda: float(layer.moving_mean.numpy()[0]))
""",
        outcome="OUTCOME nan",
    ),
    Canary(
        mends=("workers_draw_alike",),
        shows="workers drop the same units",
        program="""
strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    layer = keras.layers.Dropout(0.5)
masks = strategy.gather(strategy.run(lambda: layer(tf.ones([1, 64]), training=True)), axis=0)
outcome(lambda: np.array_equal(masks[0], masks[1]))
""",
        outcome="[worker 0] OUTCOME True",
        launch=("--workers", "2"),
    ),
    Canary(
        mends=("constraint_without_aggregation",),
        shows="a constraint fails on central storage",
        program="""
strategy = central_storage()
model = model_of(kernel_constraint="non_neg")
outcome(lambda: bool(model.fit(data(), verbose=0)))
""",
        outcome="OUTCOME raised ValueError",
    ),
    Canary(
        mends=("learning_rate_without_aggregation",),
        shows="a schedule of the learning rate fails on central storage",
        program="""
strategy = central_storage()
with strategy.scope():
    model = model_of()
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)), "mse")
outcome(lambda: bool(model.fit(data(), verbose=0)))
""",
        outcome="OUTCOME raised ValueError",
    ),
    Canary(
        mends=("nadam_counts_replicas",),
        shows="the replicas of Nadam have different states",
        program="""
strategy = mirrored()
model = model_of()
with strategy.scope():
    model.compile(keras.optimizers.Nadam(0.1), "mse")
model.fit(data(), epochs=4, verbose=0)
first, second = (one.numpy() for one in strategy.experimental_local_results(model.optimizer._u_product))
outcome(lambda: bool(first == second))
""",
        outcome="OUTCOME False",
    ),
    Canary(
        mends=("jit_compile_on_several_devices",),
        shows="jit_compile fails",
        program=stock.JIT_COMPILE,
        outcome="OUTCOME raised InvalidArgumentError",
    ),
    Canary(
        mends=("files_written_by_every_worker_keras2", "csv_written_by_every_worker"),
        shows="every worker writes files",
        program=stock.FILES_OF_EACH_WORKER,
        outcome="[worker 1] OUTCOME model csv",
        launch=("--workers", "2"),
    ),
    Canary(
        mends=("sums_without_deadline",),
        shows="a sum over workers has no deadline",
        program=data_programs.NO_DEADLINE,
        outcome="OUTCOME None",
    ),
    Canary(
        mends=("endless_data_without_steps",),
        shows="endless data with the attribute steps_per_epoch is refused",
        program=data_programs.ENDLESS_DATA,
        # Keras refuses the data although it has the attribute steps_per_epoch.
        outcome="OUTCOME raised ValueError",
    ),
)
