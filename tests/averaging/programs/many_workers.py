"""Trains on an in-process cluster with real concurrency, in fit and in a loop of one's own; prints JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tests.averaging.in_process import leave, start_cluster
from tfdist import create_strategy
from tfdist.averaging import Staleness, staleness_of
from tfdist.averaging.bound import keep_bound
from tfdist.averaging.versioned_updates import VersionedUpdates

WORKERS = 3
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(1200, 8)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def model_of(strategy: Any, optimizer: Any) -> Any:
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, metrics=["accuracy"])
    return model


def counts_of(model: Any) -> dict[str, Any]:
    counts = staleness_of(model)
    return {
        "updates": counts.updates,
        "applied": counts.applied,
        "dropped": counts.dropped,
        "waiting": counts.waiting,
        "histogram": list(counts.histogram),
        "iterations": int(np.asarray(model.optimizer.iterations)),
    }


def own_loop(strategy: Any, staleness: Staleness, *, steps: int) -> dict[str, Any]:
    strategy.tfdist_updates = VersionedUpdates(strategy, staleness)
    model = model_of(strategy, lambda: tf.keras.optimizers.Adam(0.01))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    variables = model.trainable_variables
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> None:
        def replica_step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x))
            model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        strategy.run(replica_step, args=(x, y))

    for i in range(steps):
        chosen = slice(i % 100 * 12, i % 100 * 12 + 12)
        coordinator.schedule(step, args=(X[chosen], Y[chosen]))
    coordinator.join()
    return counts_of(model)


def fit(strategy: Any, staleness: Staleness, folder: str) -> dict[str, Any]:
    strategy.tfdist_updates = VersionedUpdates(strategy, staleness)
    model = model_of(strategy, lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9))
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
    board = tf.keras.callbacks.TensorBoard(folder, write_graph=False)
    history = model.fit(data, epochs=2, verbose=0, callbacks=[board])
    logs = model.evaluate(data, verbose=0, return_dict=True)
    return {**counts_of(model), "accuracy": logs["accuracy"], "loss": [float(v) for v in history.history["loss"]]}


def synchronous(strategy: Any) -> dict[str, Any]:
    """Each update is the mean of one gradient of every worker: soft_sync with all workers, and bound 0."""
    strategy.tfdist_updates = VersionedUpdates(strategy, Staleness(soft_sync=WORKERS, bound=0))
    bound = keep_bound(strategy, 0)
    model = model_of(strategy, lambda: tf.keras.optimizers.Adam(0.05))
    start = [value.tolist() for value in model.get_weights()]
    data = tf.data.Dataset.from_tensor_slices((X[:360], Y[:360])).batch(12)
    largest = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            finished = bound.finished.values()
            largest.append(max(finished) - min(finished))
            time.sleep(0.0005)

    threading.Thread(target=watch, daemon=True).start()
    model.fit(data, epochs=2, verbose=0, shuffle=False)
    done.set()
    return {
        **counts_of(model),
        "start": start,
        "weights": [value.tolist() for value in model.get_weights()],
        "most_ahead": max(largest),
        "finished": list(bound.finished.values()),
    }


def uneven(strategy: Any) -> dict[str, Any]:
    """Every worker reads its own data, of which worker i has 4 * i + 2 batches. The bound is 0."""
    strategy.tfdist_updates = VersionedUpdates(strategy, Staleness(bound=0))
    model = model_of(strategy, lambda: tf.keras.optimizers.SGD(0.01))

    def dataset_of(context: Any) -> tf.data.Dataset:
        batches = tf.cast(context.input_pipeline_id, tf.int64) * 4 + 2
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(12).take(batches)

    model.fit(strategy.distribute_datasets_from_function(dataset_of), steps_per_epoch=18, verbose=0)
    return counts_of(model)


def sparse(strategy: Any, staleness: Staleness) -> dict[str, Any]:
    """Makes 20 steps with a sparse gradient that has one row twice."""
    strategy.tfdist_updates = VersionedUpdates(strategy, staleness)
    with strategy.scope():
        zeros = np.zeros((4, 2), "float32")
        table = tf.keras.Variable(zeros) if hasattr(tf.keras, "Variable") else tf.Variable(zeros)
        other = tf.keras.Variable([0.0]) if hasattr(tf.keras, "Variable") else tf.Variable([0.0])
        optimizer = tf.keras.optimizers.SGD(0.5)
        optimizer.build([table, other])

    def replica_step() -> None:
        gradient = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 3, 1]), tf.constant([4, 2]))
        optimizer.apply_gradients([(gradient, table), (None, other)])

    step = tf.function(lambda: strategy.run(replica_step), autograph=False)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    return {"table": np.asarray(table).tolist(), "updates": staleness_of(optimizer).updates}


def refusals(strategy: Any) -> list[str]:
    """Returns the messages of what is refused in a step."""
    strategy.tfdist_updates = VersionedUpdates(strategy, Staleness(scale=lambda tau: [1.0, 1.0]))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = tf.Variable([1.0])
        own = tf.keras.Variable([1.0]) if hasattr(tf.keras, "Variable") else variable
    scaling = getattr(tf.keras.optimizers, "LossScaleOptimizer", None) or tf.keras.mixed_precision.LossScaleOptimizer

    def outside(optimizer: Any) -> Any:
        return tf.function(lambda: optimizer.apply_gradients([(tf.constant([1.0]), own)]))

    def inside(optimizer: Any) -> Any:
        return tf.function(
            lambda: strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0]), own)])), autograph=False
        )

    accumulating = {"gradient_accumulation_steps": 2} if hasattr(tf.keras, "Variable") else {}
    messages = []
    for step in (
        outside(tf.keras.optimizers.SGD(1.0)),
        inside(tf.keras.optimizers.SGD(1.0)),
        inside(scaling(tf.keras.optimizers.SGD(1.0))),
        inside(tf.keras.optimizers.SGD(1.0, **accumulating)),
    ):
        try:
            coordinator.schedule(step)
            coordinator.join()
            messages.append("nothing")
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def main() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(16)
    cluster = start_cluster(workers=WORKERS, ps=2)
    strategy = create_strategy("parameter_server", cluster=cluster, startup_timeout_seconds=60, staleness=Staleness())
    results = {
        "loop": own_loop(strategy, Staleness(drop_above=1), steps=600),
        "loop, soft_sync": own_loop(strategy, Staleness(soft_sync=2, drop_above=0), steps=600),
        "fit": fit(strategy, Staleness(), f"{sys.argv[2]}/board"),
        "fit, soft_sync": fit(strategy, Staleness(soft_sync=3), f"{sys.argv[2]}/board2"),
        "refusals": refusals(strategy),
        "sparse": sparse(strategy, Staleness(scale=None)),
        "sparse, soft_sync": sparse(strategy, Staleness(scale=None, soft_sync=2)),
        # Last, since the bound stays.
        "synchronous": synchronous(strategy),
        "uneven": uneven(strategy),
    }
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
    leave()


if __name__ == "__main__":
    main()
