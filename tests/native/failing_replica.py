"""The last replica fails in a step, while the others wait for it: python failing_replica.py fit|function.

"interrupt" raises KeyboardInterrupt where the keys of a call have been taken for one replica of two. "graph" sums in a
graph of TensorFlow 1.

Prints the error of each worker, which lives on until a file says that the other worker has printed its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import tensorflow as tf

import tfdist

WORKERS = len(json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {}).get("worker", [""]))
INDEX = json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')["task"]["index"]
WORDS, BAD, FAILS_AT = 10, 99, 3


def fit(strategy: tf.distribute.Strategy) -> None:
    rows = np.arange(64).reshape(16, 4) % WORDS
    rows[-1] = BAD
    # Without a shuffle, the last rows of a batch are those of the last replica.
    data = tf.data.Dataset.from_tensor_slices((rows, np.ones([16, 1], np.float32))).batch(16)
    with strategy.scope():
        layers = [tf.keras.layers.Embedding(WORDS, 8), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.layers.Input((4,), dtype="int32"), *layers])
        model.compile(tfdist.optimizers.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), "mse")
    good = data.map(lambda x, y: (tf.minimum(x, WORDS - 1), y))
    model.fit(good, verbose=0)
    try:
        model.fit(data, verbose=0)
    finally:
        before = model.evaluate(good, verbose=0)
        model.fit(good, epochs=20, verbose=0)
        print("AGAIN", model.evaluate(good, verbose=0) < before, flush=True)


def interrupt(strategy: tf.distribute.Strategy) -> None:
    operations = strategy._tfdist_stock_launchers[0]

    class Interrupt(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            for group, keys in operations._collective_keys._instance_key_table.items():
                operations._collective_keys.get_instance_key(group, next(iter(keys)))
            raise KeyboardInterrupt

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones([8, 1], np.float32)
    try:
        model.fit(x, x, verbose=0, callbacks=[Interrupt()])
    except KeyboardInterrupt:
        print("AFTER", np.isfinite(model.fit(x, x, verbose=0).history["loss"]).all(), flush=True)


def graph(strategy: tf.distribute.Strategy) -> None:
    def sums() -> list[tf.Tensor]:
        return strategy.experimental_local_results(strategy.run(lambda: tfdist.collectives.all_reduce(tf.ones([]))))

    step = tf.function(sums, autograph=False)
    found = [[float(one) for one in step()]]
    with tf.Graph().as_default(), strategy.scope():
        totals = sums()
        with tf.compat.v1.Session() as session:
            found.append([float(one) for one in session.run(totals)])
    found.append([float(one) for one in step()])
    print("SUMS", found, flush=True)


def function(strategy: tf.distribute.Strategy) -> None:
    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        def of_replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            is_last = context.replica_id_in_sync_group == context.num_replicas_in_sync - 1
            total = tfdist.collectives.all_reduce(tf.ones([1000]))
            fails = tf.logical_and(is_last, number == FAILS_AT)
            checked = tf.debugging.check_numerics(total + tf.where(fails, np.nan, 0.0), "a replica failed")
            return tf.reduce_sum(tfdist.collectives.all_reduce(checked))

        return strategy.run(of_replica)

    for number in range(FAILS_AT + 1):
        step(tf.constant(number))


def main() -> None:
    if WORKERS > 1:
        # The launcher ends the other workers at once.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    name = "multi_worker_mirrored" if WORKERS > 1 else "mirrored"
    options = tfdist.AllReduceOptions(transport="native")
    strategy = tfdist.create_strategy(name, devices=2, all_reduce=options)
    for word in sys.argv[1:]:
        try:
            {"fit": fit, "function": function, "interrupt": interrupt, "graph": graph}[word](strategy)
        except tf.errors.OpError as error:
            print("FAILED", word, INDEX, type(error).__name__, " ".join(error.message.split()), flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
