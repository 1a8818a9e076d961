"""PerReplica: values of two replicas, through checkpoints, to one replica and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.allreduce.programs.replicas import on_each, own, value
from tfdist.allreduce.per_replica import PerReplica

SHAPE = (3, 2)
COUNT = 7


def run(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    def written() -> Any:
        held.assign(own(lambda replica: value(replica, shape=SHAPE)))
        count.assign(tf.constant(COUNT, tf.int64))
        return held.read()

    def erased() -> Any:
        held.assign(tf.zeros(SHAPE))
        count.assign(tf.zeros([], tf.int64))
        return held.read()

    def read() -> Any:
        return held.read(), count.read()

    with strategy.scope():
        held, count, checkpoint = _variables()
    found = {"written": on_each(strategy, written)}
    found["outside"] = [
        {
            "local": held.local().numpy().tolist(),
            "local values": [one.numpy().tolist() for one in held.local_values()],
            "values": held.values().numpy().tolist(),
        }
    ]
    two = checkpoint.save(folder / "two")
    found["erased"] = on_each(strategy, erased)
    checkpoint.restore(two).assert_consumed()
    found["restored"] = on_each(strategy, read)
    on_one, one = _through_one_replica(two, folder)
    found["on one replica"] = [on_one]
    checkpoint.restore(one).assert_consumed()
    found["of one replica"] = on_each(strategy, read)
    return found


def _variables() -> tuple[PerReplica, PerReplica, tf.train.Checkpoint]:
    held = PerReplica(tf.zeros(SHAPE), name="held")
    count = PerReplica(tf.zeros([], tf.int64), name="count", shared=True)
    return held, count, tf.train.Checkpoint(held=held, count=count)


def _through_one_replica(path: str, folder: Path) -> tuple[Any, str]:
    """Restores a checkpoint to one replica; returns the values there, and the path of a checkpoint of them."""
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        held, count, checkpoint = _variables()
        checkpoint.restore(path).assert_consumed()
        return [held.values().numpy().tolist(), count.values().numpy().tolist()], checkpoint.save(folder / "one")
