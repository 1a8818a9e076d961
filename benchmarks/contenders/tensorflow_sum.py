"""Sums tensors with tf.distribute: python tensorflow_sum.py RANK RANKS FOLDER PORT,TRANSPORT SIZE..."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sums import measure

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
port, transport = sys.argv[4].split(",")
cluster = {"worker": [f"127.0.0.1:{int(port) + other}" for other in range(ranks)]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})

import tensorflow as tf  # noqa: E402  TF_CONFIG comes first.

import tfdist  # noqa: E402

strategy = tfdist.create_strategy("multi_worker_mirrored", all_reduce=tfdist.AllReduceOptions(transport=transport))


def summed(elements: int):
    with strategy.scope():
        own = tf.Variable(tf.ones([elements]), trainable=False)

    @tf.function
    def total() -> tf.Tensor:
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", own.read_value()))

    last: list[tf.Tensor] = []

    def step() -> None:
        # Only the first element is copied: the host has to wait for the sum.
        last[:] = [strategy.experimental_local_results(total())[0]]
        last[0][0].numpy()

    return step, lambda: last[0].numpy()


measure(rank, ranks, sys.argv[5:], summed)
with strategy.scope():
    tfdist.collectives.barrier()
os._exit(0)
