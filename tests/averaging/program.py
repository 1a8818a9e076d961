"""Trains a small model with LocalSGD, DPSGD or ChocoSGD, in float64; run in the process of the tests and on workers.

python program.py FOLDER OPTIONS    OPTIONS: JSON, the keywords of `train`
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.averaging import oracle
from tests.optimizers.every_optimizer import compute_in
from tfdist.allreduce import ErrorFeedback, PowerSGD, Threshold, TopK
from tfdist.averaging import DPSGD, BlockMomentum, ChocoSGD, ElasticAverage, LocalSGD, Nesterov, averaged


class TopKOfAll(TopK):
    """TopK that compresses the small arrays of the oracle too."""

    smallest = 1


class ThresholdOfAll(Threshold):
    """Threshold that compresses the small arrays of the oracle too."""

    smallest = 1


class PowerSGDOfAll(PowerSGD):
    """PowerSGD that compresses the small arrays of the oracle too."""

    smallest = 1


COMPRESSIONS: dict[str, Any] = {
    "topk of all": TopKOfAll(0.2),
    "threshold of all": ThresholdOfAll(1 / 128),
    "powersgd of all": ErrorFeedback(PowerSGDOfAll(1)),
}
RULES: dict[str, Any] = {"block_momentum": BlockMomentum, "nesterov": Nesterov, "elastic": ElasticAverage}


def train(
    strategy: tf.distribute.Strategy,
    *,
    epochs: int = 5,
    every: Any = 4,
    outer: str = "average",
    rule: dict[str, float] | None = None,
    loop: str = "fit",
    momentum: float = 0.0,
    optimizer: str = "sgd",
    callbacks: Any = (),
    algorithm: str = "LocalSGD",
    dtype: str = "float64",
    compressed_by: str = "",
    settles: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Trains, and returns the weights that are seen, and the own weights and slots of the replicas of this process.

    For LocalSGD also the traffic of compressed meetings: their number, the bytes sent, and the bytes uncompressed. With
    settles, the sums on the way are waited for after each step.
    """
    compute_in(dtype)
    try:
        if settles:
            callbacks = [*callbacks, Settles()]
        if compressed_by:
            compression = COMPRESSIONS.get(compressed_by, compressed_by)
            options = {"all_reduce": tfdist.AllReduceOptions(compression=compression), **options}
        if algorithm == "LocalSGD":
            options = {"every": every, "outer": RULES[outer](**(rule or {})) if outer in RULES else outer, **options}
        return _train(strategy, epochs, algorithm, loop, momentum, optimizer, callbacks, options)
    finally:
        compute_in("float32")


class Settles(tf.keras.callbacks.Callback):
    """Enters the context in which snapshots are made after each step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        with self.model.optimizer._tfdist_hook.own():
            pass


def _train(
    strategy: Any,
    epochs: int,
    algorithm: str,
    loop: str,
    momentum: float,
    optimizer: str,
    callbacks: Any,
    options: Any,
) -> dict[str, Any]:
    model = make_model(strategy)
    with strategy.scope():
        made = (
            tf.keras.optimizers.SGD(0.05, momentum=momentum) if optimizer == "sgd" else tf.keras.optimizers.Adam(0.01)
        )
        local = wrapped(algorithm, made, options)
        if loop == "fit":
            model.compile(local, "mse")
    data = strategy.distribute_datasets_from_function(pipeline)
    if loop == "fit":
        model.fit(data, epochs=epochs, steps_per_epoch=oracle.STEPS, verbose=0, callbacks=list(callbacks))
        seen = model.get_weights()
    else:
        loop_of_its_own(strategy, model, local, data, epochs, eager=loop == "eager")
        with averaged(local):
            seen = model.get_weights()
    hook = local._tfdist_hook
    with hook.own():
        own = [_values(strategy, variable) for variable in hook.meeting.weights]
        slots = [_values(strategy, variable) for variable in hook.meeting.slots_of()]
    traffic = hook.meeting.path.traffic() if algorithm == "LocalSGD" else None
    sent = [traffic.steps, traffic.sent, traffic.uncompressed] if traffic else []
    return {"seen": seen, "own": own, "slots": slots, "traffic": sent}


def wrapped(algorithm: str, optimizer: Any, options: dict[str, Any]) -> Any:
    """Returns an optimizer of one of the algorithms."""
    if algorithm == "ChocoSGD":
        compression = options["compression"]
        return ChocoSGD(optimizer, **{**options, "compression": COMPRESSIONS.get(compression, compression)})
    return (DPSGD if algorithm == "DPSGD" else LocalSGD)(optimizer, **options)


def make_model(strategy: Any) -> Any:
    """Returns the model of the oracle, with its first weights."""
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((oracle.FEATURES,)),
                tf.keras.layers.Dense(oracle.UNITS, "tanh"),
                tf.keras.layers.Dense(1),
            ]
        )
        model.set_weights(oracle.first_weights())
    return model


def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns the batches of the replicas of a worker, one after the other."""
    replicas = context.num_replicas_in_sync // context.num_input_pipelines
    first = context.input_pipeline_id * replicas

    def batches() -> Any:
        for step in range(oracle.STEPS):
            for replica in range(first, first + replicas):
                yield oracle.rows_of(replica, step)

    spec = tuple(tf.TensorSpec([None, width], tf.float64) for width in (oracle.FEATURES, 1))
    return tf.data.Dataset.from_generator(batches, output_signature=spec).repeat()


def loop_of_its_own(strategy: Any, model: Any, optimizer: Any, data: Any, epochs: int, *, eager: bool = False) -> None:
    """Trains as TensorFlow documents it: the loss is divided by the global batch."""

    def step(batch: Any) -> None:
        x, y = (tf.cast(one, tf.keras.backend.floatx()) for one in batch)
        total = tf.distribute.get_replica_context().all_reduce("SUM", tf.cast(tf.shape(x)[0], x.dtype))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / total
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def run(batch: Any) -> None:
        strategy.run(step, args=(batch,))

    # Batches have several shapes, each of which would be traced.
    run = run if eager else tf.function(run, reduce_retracing=True)
    for _ in range(epochs):
        for batch in itertools.islice(data, oracle.STEPS):
            run(batch)


def _values(strategy: Any, variable: Any) -> list[np.ndarray]:
    return [one.numpy() for one in strategy.experimental_local_results(variable)]


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    devices = given.pop("devices", None)
    all_reduce = tfdist.AllReduceOptions(transport=given.pop("transport", "auto"))
    made = tfdist.create_strategy("multi_worker_mirrored", devices=devices, all_reduce=all_reduce)
    result = train(made, **given)
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    lists = {name: [np.asarray(one).tolist() for one in values] for name, values in result.items()}
    (Path(sys.argv[1]) / f"{index}.json").write_text(json.dumps(lists))
