"""Calls every function of tfdist.collectives on a worker with two replicas: python collectives_program.py TRANSPORT."""

import json
import sys

import tensorflow as tf

import tfdist
from tfdist.collectives import all_gather, all_reduce, barrier, broadcast
from tfdist.workers import worker_index

strategy = tfdist.create_strategy(
    "multi_worker_mirrored", devices=2, all_reduce=tfdist.AllReduceOptions(transport=sys.argv[1])
)
worker = worker_index(strategy)
DTYPES = ("float64", "float32", "float16", "bfloat16", "int32", "int64")
NARROW = ("int8", "uint8", "int16", "uint16", "uint32", "uint64")


@tf.function
def in_step():
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    own = tf.cast(replica, tf.float64)
    special = tf.stack([-0.0 * (own + 1), own / 0.0, own])
    found = {
        "sum": all_reduce([own, 2 * own]),
        "mean": all_reduce(own, "mean"),
        "gathered": all_gather(tf.fill([replica + 1], own)),
        "broadcast": broadcast(special, root=3),
        "booleans": broadcast(tf.equal(replica, 2), root=2),
        "complex": tf.bitcast(broadcast(tf.complex(own, -own), root=3), tf.float64),
        "sum of complex": tf.bitcast(all_reduce(tf.complex([own, 1.0], [1.0, own])), tf.float64),
        "replicas": barrier(),
    }
    for dtype in DTYPES:
        found[dtype] = all_reduce(tf.cast([replica, 3], dtype))
        found[f"broadcast {dtype}"] = broadcast(tf.cast([replica, 3], dtype), root=1)
    for dtype in NARROW:
        # All bits of the second one are set.
        found[f"broadcast {dtype}"] = broadcast(tf.cast([replica, -1], dtype), root=1)
    return found


def plain(tensor):
    if tensor.dtype.is_floating:
        # Texts, because JSON has no -0.0 apart from 0.0, and no infinity.
        return [repr(float(value)) for value in tf.reshape(tf.cast(tensor, tf.float64), [-1])]
    return tf.reshape(tensor, [-1]).numpy().tolist()


results = strategy.run(in_step)
replicas = [
    {name: plain(strategy.experimental_local_results(value)[place]) for name, value in results.items()}
    for place in range(2)
]
with strategy.scope():
    outside = {
        "sum": plain(all_reduce(tf.constant([worker + 1.0, 2.0]))),
        "mean": plain(all_reduce(tf.constant(float(worker)), "mean")),
        "gathered": plain(all_gather(tf.fill([worker + 1], worker + 5))),
        "broadcast": plain(broadcast(tf.constant([worker * 1.5, -0.0]), root=1)),
        "workers": int(barrier()),
    }
print("RESULT", json.dumps({"replicas": replicas, "outside": outside}))
