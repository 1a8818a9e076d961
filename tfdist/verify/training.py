"""Trains the model of a call of tfdist.verify in a process of its own: python -m tfdist.verify.training FILE."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist._sending import open_folders
from tfdist.verify.program import refuse


def main(path: str) -> None:
    """Makes the strategy, the model and the dataset, and calls `fit`.

    Args:
        path: file that tfdist.verify has written.
    """
    inner = open_folders(Path(path).read_bytes())
    from tfdist import strategies

    strategy = strategies.create_strategy()
    model_fn, data, global_batch_size, steps = pickle.loads(inner)
    dataset = batches_of(data, global_batch_size)
    with strategy.scope():
        model = model_fn()
    is_compiled = getattr(model, "compiled", getattr(model, "_is_compiled", False))
    if not hasattr(model, "fit") or not is_compiled:
        kind = "a model that is not compiled" if hasattr(model, "fit") else type(model).__name__
        refuse(f"expected model_fn to return a compiled Keras model, received {kind}; return it after compile().")
    model.fit(dataset, steps_per_epoch=steps, verbose=0)


def batches_of(data: Any, global_batch_size: int | None) -> Any:
    """Returns an endless tf.data.Dataset of global batches, whose rows the workers divide.

    Args:
        data: a structure of arrays, or a function that returns a tf.data.Dataset.
        global_batch_size: rows of a global batch of the arrays; None for a function.
    """
    import tensorflow as tf

    if global_batch_size is None:
        dataset = made_by(data)
    else:
        # `fit` of arrays casts floating-point numbers in the same way.
        dtype = tf.keras.backend.floatx()
        data = tf.nest.map_structure(lambda array: array.astype(dtype) if array.dtype.kind == "f" else array, data)
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(global_batch_size)
    options = tf.data.Options()
    # By default, workers divide the files of a dataset, so that their global batches would have other rows.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.repeat().with_options(options)


def made_by(data: Callable[[], Any]) -> Any:
    """Returns the dataset that a function makes."""
    import tensorflow as tf

    dataset = data()
    if not isinstance(dataset, tf.data.Dataset):
        refuse(f"expected the data function to return a tf.data.Dataset, received {type(dataset).__name__}.")
    return dataset


if __name__ == "__main__":
    main(sys.argv[1])
