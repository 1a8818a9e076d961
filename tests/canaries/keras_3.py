"""The canaries of Keras 3."""

from __future__ import annotations

from tests.canaries import data_programs, own_steps, stock
from tests.canaries.stock import Canary

CANARIES = (
    *stock.COMMON,
    Canary(
        mends=("symbolic_build_averages_data",),
        shows="building a model averages input data, and fails on strings",
        program="""
strategy = mirrored()
with strategy.scope():
    inputs = keras.layers.Input((1,), dtype="string")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(keras.layers.StringLookup(vocabulary=["a"])(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
words = tf.data.Dataset.from_tensor_slices((np.array([["a"]] * 8), y)).batch(4)
outcome(lambda: bool(model.fit(words, verbose=0)))
""",
        outcome="OUTCOME raised InvalidArgumentError",
    ),
    Canary(
        mends=("model_without_call",),
        shows="a model without call is not trained",
        program=own_steps.MODEL_WITHOUT_CALL,
        outcome="OUTCOME raised RuntimeError",
    ),
    Canary(
        mends=("model_without_call",),
        shows="a model is called with the batch although its train_step calls it with something else",
        program=own_steps.CALL_OF_SOMETHING_ELSE,
        outcome="OUTCOME raised RuntimeError",
    ),
    Canary(
        mends=("predictions_repeated_by_replicas",),
        shows="predict_on_batch returns the predictions of each replica",
        program="""
strategy = mirrored()
model = model_of()
outcome(lambda: model.predict_on_batch(x).shape)
""",
        # x has 8 rows.
        outcome="OUTCOME (16, 1)",
    ),
    Canary(
        mends=("state_shared_by_replicas",),
        shows="on central storage, replicas cannot assign the state of a stateful layer",
        program="""
strategy = central_storage()
with strategy.scope():
    layer = keras.layers.SimpleRNN(1, stateful=True)
    layer.build((2, 3, 4))
outcome(lambda: bool(strategy.run(lambda: layer(tf.ones([2, 3, 4])))))
""",
        outcome="OUTCOME raised ValueError",
    ),
    Canary(
        mends=("steps_counted_by_each_worker",),
        shows="the batches of one worker are counted as the steps of a distributed dataset",
        program="""
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
strategy = mirrored()
batches = strategy.distribute_datasets_from_function(lambda context: tf.data.Dataset.from_tensor_slices(x).batch(2))
outcome(lambda: TFDatasetAdapter(batches).num_batches)
""",
        # The 4 batches make 2 steps, since each step takes one batch for each replica.
        outcome="OUTCOME 4",
    ),
    Canary(
        mends=("logs_reduced_along_an_axis",),
        shows="logs of workers are reduced along an axis",
        program="""
from keras.src.backend.tensorflow import trainer
strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def step():
    return trainer.reduce_per_replica(strategy.run(lambda: {"loss": tf.constant(1.0)}), strategy, "auto")


outcome(lambda: float(step()["loss"]))
""",
        outcome="[worker 0] OUTCOME raised ValueError",
        launch=("--workers", "2"),
    ),
    Canary(
        mends=("steps_fail_in_a_loop",),
        shows="steps_per_execution fails",
        program="""
strategy = mirrored()
model = model_of()
model.compile("sgd", "mse", steps_per_execution=2)
outcome(lambda: bool(model.fit(data(), verbose=0)))
""",
        outcome="OUTCOME raised InvalidArgumentError",
    ),
    Canary(
        mends=("steps_fail_in_a_loop",),
        shows="jit_compile fails",
        program=stock.JIT_COMPILE,
        outcome="OUTCOME raised InvalidArgumentError",
    ),
    Canary(
        mends=("steps_fail_in_a_loop",),
        shows="a step without data is counted",
        program="""
strategy = mirrored()
model = model_of()
halves = strategy.distribute_datasets_from_function(lambda context: data().unbatch().batch(2))


def steps():
    model.fit(halves, verbose=0)
    return int(model.optimizer.iterations.numpy())


outcome(steps)
""",
        # There is data for 2 steps.
        outcome="OUTCOME 3",
        # Keras 3.8 does not accept the data.
        releases=((3, 9), (3, 15)),
        otherwise="OUTCOME raised ValueError",
    ),
    Canary(
        mends=("dataset_functions_not_accepted",),
        shows="fit does not accept the datasets of a function",
        program="""
strategy = mirrored()
model = model_of()
halves = strategy.distribute_datasets_from_function(lambda context: data().unbatch().batch(2))
outcome(lambda: bool(model.fit(halves, steps_per_epoch=1, verbose=0)))
""",
        outcome="OUTCOME raised ValueError",
        releases=((3, 8), (3, 8)),
        otherwise="OUTCOME True",
    ),
    Canary(
        mends=("loss_divided_by_replicas",),
        shows="replicas with different numbers of rows have the same weight",
        program=stock.UNEVEN_LAST_BATCH,
        outcome=stock.UNEVEN_LAST_BATCH_OUTCOME,
    ),
    Canary(
        mends=("activity_regularizers_add_rows",),
        shows="the loss of an activity regularizer is a sum over rows, and divided by the number of replicas",
        program="""
strategy = mirrored()
with strategy.scope():
    total = lambda outputs: keras.ops.sum(outputs)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", activity_regularizer=total)
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    # The other loss is 0.
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: 0.0 * p)
model.fit(np.ones([4, 1], "float32"), np.ones([4, 1], "float32"), batch_size=4, verbose=0)
outcome(lambda: round(float(model.get_weights()[0][0, 0]), 3))
""",
        # The sum over the four rows would move the weight by 4 from 1.
        outcome="OUTCOME -1.0",
        releases=((3, 8), (3, 13)),
        # Since Keras 3.14 the loss is the mean over the rows.
        otherwise="OUTCOME 0.0",
    ),
    Canary(
        mends=("losses_shared_by_replicas",),
        shows="a replica reads the losses of another replica",
        program="""
class Penalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs))
        tf.distribute.get_replica_context().merge_call(lambda strategy: None)
        return inputs


strategy = mirrored()
with strategy.scope():
    layer = Penalty()


def loss(batch):
    layer(batch)
    return layer.losses[0] + 0.0


losses = strategy.run(loss, args=(on_each_replica(lambda replica: tf.constant([float(replica)])),))
outcome(lambda: [float(one) for one in strategy.experimental_local_results(losses)])
""",
        # The loss of the first replica is 0.
        outcome="OUTCOME [1.0, 1.0]",
    ),
    Canary(
        mends=("gradients_used_before_the_sum",),
        shows="a gradient is clipped before the sum",
        program="""
strategy = mirrored()
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0, clipvalue=1.0)
    optimizer.build([weight])
strategy.run(lambda: optimizer.apply([tf.constant(1.0)], [weight]))
outcome(lambda: float(weight.numpy()))
""",
        # Clipping the sum of the two gradients would move the weight by 1.
        outcome="OUTCOME -2.0",
    ),
    Canary(
        mends=("gradients_used_before_the_sum",),
        shows="an infinite gradient of the second replica is applied",
        program="""
strategy = mirrored()
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([weight])
gradients = on_each_replica(lambda replica: tf.constant([0.0, np.inf][replica]))
tf.function(lambda: strategy.run(lambda gradient: optimizer.apply([gradient], [weight]), args=(gradients,)))()
outcome(lambda: float(weight.numpy()))
""",
        outcome="OUTCOME -inf",
    ),
    Canary(
        mends=("replicas_draw_alike",),
        shows="replicas drop the same units",
        program="""
strategy = mirrored()
with strategy.scope():
    layer = keras.layers.Dropout(0.5)
first, second = strategy.experimental_local_results(strategy.run(lambda: layer(tf.ones([1, 64]), training=True)))
outcome(lambda: np.array_equal(first, second))
""",
        outcome="OUTCOME True",
    ),
    Canary(
        mends=("batch_statistics_stay_local",),
        shows="batch statistics are those of the first replica",
        program="""
strategy = mirrored()
with strategy.scope():
    layer = keras.layers.BatchNormalization(momentum=0.0)
    layer.build((None, 1))
batches = on_each_replica(lambda replica: tf.fill([2, 1], float(replica)))
strategy.run(lambda batch: layer(batch, training=True), args=(batches,))
outcome(lambda: float(np.asarray(layer.moving_mean.numpy())[0]))
""",
        # The average over the replicas would be 0.5.
        outcome="OUTCOME 0.0",
    ),
    Canary(
        mends=("batch_statistics_stay_local",),
        shows="batch statistics of a replica without rows are NaN",
        program="""
strategy = mirrored()
with strategy.scope():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 1))
batches = on_each_replica(lambda replica: tf.ones([replica, 1]))
strategy.run(lambda batch: layer(batch, training=True), args=(batches,))
outcome(lambda: float(np.asarray(layer.moving_mean.numpy())[0]))
""",
        outcome="OUTCOME nan",
    ),
    Canary(
        mends=("counter_update_is_read_then_assign",),
        shows="a counter is read and then assigned",
        program="""
strategy = central_storage()
with strategy.scope():
    metric = keras.metrics.Sum()
for _ in range(2):
    strategy.run(lambda: metric.update_state(tf.constant([1.0])))
outcome(lambda: float(metric.total.numpy()))
""",
        # The metric gets 4 updates of 1, but each step adds the old value once for each replica.
        outcome="OUTCOME 6.0",
    ),
    Canary(
        mends=("parameter_server_fit_keras3",),
        shows="fit fails on parameter servers",
        program=stock.FIT_ON_PARAMETER_SERVERS,
        outcome="[chief 0] OUTCOME raised",
        launch=("--workers", "2", "--ps", "1"),
    ),
    Canary(
        mends=("files_written_by_every_worker_keras3", "logs_written_by_every_worker", "backup_owned_by_no_worker"),
        shows="every worker writes files",
        program=stock.FILES_OF_EACH_WORKER,
        outcome="[worker 1] OUTCOME model csv board backup",
        launch=("--workers", "2"),
    ),
    Canary(
        mends=("endless_data_without_steps",),
        shows="an epoch of endless data does not end",
        program=data_programs.ENDLESS_DATA,
        outcome="OUTCOME True",
        # Keras 3.8 does not accept the data.
        releases=((3, 9), (3, 15)),
        otherwise="OUTCOME raised ValueError",
    ),
    Canary(
        mends=("orbax_knows_one_replica",),
        shows="OrbaxCheckpoint cannot convert the step counter of a mirrored optimizer",
        program="""
strategy = mirrored()
model = model_of()
model.fit(data(), verbose=0)


def counts_steps():
    callback = object.__new__(keras.callbacks.OrbaxCheckpoint)
    callback._multihost_initialized = callback._is_multihost_initialized()
    assert callback.is_primary_host()
    callback.set_model(model)


outcome(counts_steps)
""",
        outcome="OUTCOME raised TypeError",
        # Keras 3.8 to 3.12 have no OrbaxCheckpoint, and that of 3.13 does not read the step counter.
        releases=((3, 14), (3, 15)),
        otherwise="OUTCOME raised AttributeError",
    ),
    Canary(
        mends=("orbax_knows_one_replica",),
        shows="OrbaxCheckpoint knows no workers",
        program="""
import inspect
import keras.src.callbacks as callbacks
outcome(lambda: "distribute_strategy" in inspect.getsource(callbacks.OrbaxCheckpoint))
""",
        outcome="OUTCOME False",
        # Keras 3.8 to 3.12 have no OrbaxCheckpoint, and that of 3.13.2 is not public.
        releases=((3, 13), (3, 15)),
        otherwise="OUTCOME raised AttributeError",
    ),
    Canary(
        mends=("metrics_summed_at_each_update",),
        shows="the total of a metric is summed over replicas at each update",
        program="""
strategy = mirrored()
with strategy.scope():
    metric = keras.metrics.Sum()
for _ in range(2):
    strategy.run(lambda: metric.update_state(tf.constant([1.0])))
outcome(lambda: float(metric.total.numpy()))
""",
        # The metric gets 4 updates of 1, but the second step adds the old value once for each replica.
        outcome="OUTCOME 6.0",
        # Since Keras 3.10 each replica has a total of its own.
        releases=((3, 8), (3, 9)),
        otherwise="OUTCOME 4.0",
    ),
    Canary(
        mends=("initial_epoch_outlives_fit",),
        shows="a restored epoch is the first one of the next fit",
        program="""
strategy = tf.distribute.get_strategy()
model = model_of()
model._initial_epoch = 2
outcome(lambda: [len(model.fit(data(), epochs=3, verbose=0).epoch) for _ in range(2)])
""",
        # The second call of fit also trains only 1 of its 3 epochs.
        outcome="OUTCOME [1, 1]",
    ),
    Canary(
        mends=("compiled_outside_of_scope",),
        shows="each replica counts the steps of a model that is compiled outside of the scope",
        program="""
strategy = mirrored()
model = model_of()
model.compile("sgd", "mse")
model.fit(data(), verbose=0)
outcome(lambda: int(model.optimizer.iterations.numpy()))
""",
        # There is data for 2 steps.
        outcome="OUTCOME 4",
    ),
)
