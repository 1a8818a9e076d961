"""Mends Keras 3's reduction of logs across workers, which fails because it reduces scalars along an axis.

`reduce_per_replica` calls `strategy.reduce("MEAN", v, axis=0)` on scalars under MultiWorkerMirroredStrategy. The mend
takes the mean without an axis. It packs all values of a step, so that one collective per dtype is enough.

Source: upstream issue tensorflow/tensorflow#72388.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from keras.src.backend.tensorflow import trainer

    # The inner function `_reduce` passes axis=0 to strategy.reduce.
    inner = [c for c in trainer.reduce_per_replica.__code__.co_consts if hasattr(c, "co_consts")]
    return any("MEAN" in code.co_consts and "reduce" in code.co_names for code in inner)


def mean_over_replicas(values: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns the mean of each value over all replicas of all workers.

    Args:
        values: a structure of tensors or PerReplica values; each has the same static shape on every replica.
        strategy: the strategy; call the function in its cross-replica context.
    """
    flat = tf.nest.flatten(values)
    local = [strategy.experimental_local_results(value)[0] for value in flat]
    means: list[Any] = [None] * len(flat)
    # The order is the same on every worker, because TensorFlow matches collectives by their order.
    for dtype in sorted({value.dtype for value in local}, key=lambda dtype: dtype.name):
        chosen = [i for i, value in enumerate(local) if value.dtype == dtype]
        shapes = [local[i].shape for i in chosen]
        packed = strategy.run(_pack, args=([flat[i] for i in chosen],))
        reduced = strategy.reduce(tf.distribute.ReduceOp.MEAN, packed, axis=None)
        parts = tf.split(reduced, [shape.num_elements() for shape in shapes])
        for i, part, shape in zip(chosen, parts, shapes, strict=True):
            means[i] = tf.reshape(part, shape)
    return tf.nest.pack_sequence_as(values, means)


def _pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    # Integers and bools are cast to float32, because their mean is a fraction.
    return tf.concat([tf.reshape(v if v.dtype.is_floating else tf.cast(v, tf.float32), [-1]) for v in values], axis=0)


def _apply() -> None:
    from keras.src.backend.tensorflow import trainer

    stock = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        across_workers = trainer._collective_all_reduce_multi_worker(strategy)
        if not across_workers or reduction not in ("auto", "mean") or not tf.nest.flatten(values):
            return stock(values, strategy, reduction)
        if any(
            strategy.experimental_local_results(value)[0].shape.num_elements() is None
            for value in tf.nest.flatten(values)
        ):
            raise ValueError(
                "expected train_step and test_step to return values of a fixed shape under "
                "multi_worker_mirrored, received a value whose shape depends on the batch; return its mean or sum."
            )
        return mean_over_replicas(values, strategy)

    trainer.reduce_per_replica = reduce_per_replica


MEND = Mend(
    name="logs_reduced_along_an_axis",
    issue="tensorflow/tensorflow#72388",
    strategies=("multi_worker_mirrored",),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="logs are reduced along an axis that scalars do not have: `fit` fails",
    rows=("own train_step",),
)
