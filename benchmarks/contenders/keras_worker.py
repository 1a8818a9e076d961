"""Trains one rank with plain tf.distribute (method "stock") or with tfdist (method "tfdist ...").

The method "tfdist local NAME=VALUE..." trains with tfdist.averaging.LocalSGD. The settings: every (steps from one
meeting to the next), start (synchronous steps before), outer (average, block_momentum, nesterov, elastic), average
(what is averaged, separated by commas), compression, overlap (1 to send during the local steps), and rate (learning
rate). The other methods may end with "rate=VALUE".

The method "tfdist native gossip NAME=VALUE..." trains with tfdist.averaging.DPSGD, or with ChocoSGD if it has a
compression. The settings: mixing, compression, gamma (consensus_rate) and rate. Without "native", TensorFlow gathers
all weights on each rank.
"""

from __future__ import annotations

import json
import os

import numpy as np
from common import LEARNING_RATE, Rounds, parse_arguments, rounds_of, run, settings_of

arguments = parse_arguments()
addresses = arguments.addresses.split(",")
kind, _, method = arguments.method.partition(" ")
# "tfdist" sends with TensorFlow, also where tfdist-native is installed, and "tfdist native ..." with tfdist-native.
transport = "native" if method.split(" ")[0] == "native" else "tensorflow"
method, _, rate = method.removeprefix("native").strip().partition("rate=")
method = method.strip()
if method == "alone":
    # The rank trains on its own rows in a cluster of one worker, so that there is no all-reduce.
    addresses, task = [addresses[arguments.rank]], {"type": "worker", "index": 0}
else:
    task = {"type": "worker", "index": arguments.rank}
cluster = {"worker": [f"{address}:5000" for address in addresses]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
if kind == "stock":
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    import tfdist

    all_reduce = None if method == "alone" else tfdist.AllReduceOptions(transport=transport)
    strategy = tfdist.create_strategy("multi_worker_mirrored", all_reduce=all_reduce)
    import tensorflow as tf

from network import Data, build  # noqa: E402  The module makes tensors, which must not exist before the strategy.

data = Data(arguments)
algorithm, _, given = method.partition(" ")
settings = settings_of(given) if algorithm in ("local", "gossip") else {}
rounds = rounds_of(arguments, settings) if algorithm == "local" else Rounds(differ=algorithm == "gossip")
with strategy.scope():
    model, optimizer = build(arguments, data.rows, rate=float(rate or LEARNING_RATE))
    if algorithm == "gossip":
        from tfdist.averaging import DPSGD, ChocoSGD

        mixing, compression = settings.get("mixing", "ring"), settings.get("compression")
        if compression:
            gamma = float(settings["gamma"])
            optimizer = ChocoSGD(optimizer, mixing=mixing, compression=compression, consensus_rate=gamma)
        else:
            optimizer = DPSGD(optimizer, mixing=mixing)
    elif settings:
        from tfdist import AllReduceOptions
        from tfdist.averaging import ElasticAverage, LocalSGD

        outer = settings.get("outer", "average")
        compression = settings.get("compression")
        optimizer = LocalSGD(
            optimizer,
            every=rounds.every,
            start_step=rounds.start,
            # The rate of the paper.
            outer=ElasticAverage(rate=0.9 / len(addresses)) if outer == "elastic" else outer,
            average=settings.get("average", "weights").split(","),
            all_reduce=AllReduceOptions(compression=compression) if compression else None,
            overlap="overlap" in settings,
        )
    elif kind == "tfdist" and method not in ("bare", "alone"):
        from tfdist import AllReduceOptions
        from tfdist.optimizers import DistributedOptimizer

        # Packs of 1 GiB are larger than all gradients together, which makes one pack.
        options = {"bytes_per_pack": 1 << 30} if method == "one-pack" else {"compression": method or "none"}
        optimizer = DistributedOptimizer(optimizer, all_reduce=AllReduceOptions(**options))
    optimizer.build(model.trainable_variables)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def step(rows: tf.Tensor) -> tf.Tensor:
    def replica(rows: tf.Tensor) -> tf.Tensor:
        images, labels = data.batch(rows)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(labels, model(images, training=True))) / arguments.batch
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return strategy.run(replica, args=(rows,))


last = [tf.zeros([])]


def one_step(rows: np.ndarray) -> None:
    last[0] = step(tf.constant(rows))


def finish() -> None:
    float(strategy.experimental_local_results(last[0])[0])


accuracy_now = data.accuracy_of(model)


def accuracy() -> float:
    if not settings:
        return accuracy_now()
    from tfdist.averaging import averaged

    # In the middle of a round this averages the weights of all ranks.
    with averaged(optimizer):
        return accuracy_now()


run(arguments, data.rows, one_step, finish, accuracy, rounds)
if "overlap" in settings:
    # Waits for the sums that are on the way, which would fail if a worker ended before.
    accuracy()
# If a worker exits, the others fail: every worker therefore waits until all workers have ended their steps.
strategy.reduce("SUM", strategy.run(lambda: tf.ones([])), axis=None).numpy()
os._exit(0)
