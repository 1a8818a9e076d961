"""Programs of canaries about data that TensorFlow and Keras read."""

# Prints whether tf.data tunes the dataset of each of two devices, which only passes batches on.
TUNED_DEVICE_DATASETS = """
from tensorflow.python.data.ops import multi_device_iterator_ops
strategy = mirrored()
stock, tuned = multi_device_iterator_ops._create_device_dataset, []


def create(*args):
    dataset = stock(*args)
    tuned.append(dataset.options().autotune.enabled is not False)
    return dataset


multi_device_iterator_ops._create_device_dataset = create
next(iter(strategy.experimental_distribute_dataset(data())))
outcome(lambda: tuned)
"""

# Trains on endless data that has the attribute steps_per_epoch, without the argument steps_per_epoch of fit. Prints
# whether the epoch goes on after 20 steps.
ENDLESS_DATA = """
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch > 20
        self.batch = batch


strategy = mirrored()
endless = strategy.distribute_datasets_from_function(lambda context: data().repeat())
endless.steps_per_epoch = 2
stop = Stop()
model = model_of()
outcome(lambda: bool(model.fit(endless, verbose=0, callbacks=[stop])) and stop.batch > 20)
"""

# Prints whether the results of replicas were written into the array that the generator yields.
OVERWRITTEN_ARRAYS = """
strategy = mirrored()
memory = np.zeros(8192 + 64, "uint8")
start = -memory.ctypes.data % 64
rows = memory[start : start + 8192].view("float64").reshape(128, 8)
before = rows.copy()
signature = tf.TensorSpec((None, 8), tf.float64)
data = tf.data.Dataset.from_generator(lambda: (rows[i : i + 16] for i in range(0, 128, 16)), output_signature=signature)
step = tf.function(lambda batch: strategy.run(lambda own: tf.reduce_sum(tf.square(own - 1.0) * 3.0), args=(batch,)))
read = tf.function(lambda iterator: step(next(iterator)))


def is_overwritten():
    for _ in range(10):
        iterator = iter(strategy.experimental_distribute_dataset(data))
        for _ in range(8):
            read(iterator)
    return bool((rows != before).any())


outcome(is_overwritten)
"""

# Prints the default time limit of a sum over workers.
NO_DEADLINE = """
outcome(lambda: tf.distribute.experimental.CommunicationOptions().timeout_seconds)
"""

# Prints whether two workers read each row of shuffled arrays once in an epoch.
ROWS_OF_AN_EPOCH = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rows = np.arange(256)
if hasattr(keras, "ops"):
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    dataset = ArrayDataAdapter(rows, batch_size=32, shuffle=True).get_tf_dataset()
else:
    adapters = sys.modules[keras.Model.__module__].data_adapter
    dataset = adapters.TensorLikeDataAdapter(rows, None, batch_size=32, shuffle=True).get_dataset()


def counts(batch):
    return tf.reduce_sum(tf.one_hot(tf.nest.flatten(batch)[0], 256), axis=0)


step = tf.function(lambda batch: strategy.reduce("SUM", strategy.run(counts, args=(batch,)), axis=None))
total = sum(step(batch).numpy() for batch in strategy.experimental_distribute_dataset(dataset))
outcome(lambda: bool((total == 1).all()))
"""
