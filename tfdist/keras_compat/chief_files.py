"""Files that one worker writes: every worker takes part in a save, one file results, complete or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files for the whole cluster.

    Args:
        strategy: any strategy; all but the multi-worker ones have one process only that runs the program.
    """
    return bool(getattr(strategy.extended, "should_checkpoint", True))


def save_model(model: Any, path: str) -> None:
    """Saves a model, optimizer state included, as a `.keras` file; to be called by every worker.

    Reading some variables (batch statistics, metrics) synchronizes the workers, so that all of them have to take part;
    the chief alone keeps what it wrote, and renames it into place, so that nobody can read half a file.

    Args:
        model: a built Keras model, made under a strategy or under none.
        path: name of the file, ending in .keras.

    Raises:
        ValueError: if the name does not end in .keras.

    Example:
        >>> import os, tempfile
        >>> from tfdist.keras_compat import keras, save_model
        >>> model = keras().Sequential([keras().layers.Input((2,)), keras().layers.Dense(1)])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.keras")
        >>> save_model(model, path)
        >>> os.path.exists(path)
        True
    """
    if not path.endswith(".keras"):
        raise ValueError(f"expected a file name that ends in .keras, received {path!r}; append .keras.")
    with _scratch_beside(path) as scratch:
        model.save(scratch)
        if is_chief(model.distribute_strategy):
            os.replace(scratch, path)


@contextlib.contextmanager
def _scratch_beside(path: str) -> Iterator[str]:
    # In the same folder, so that renaming does not cross file systems; hidden, so that no pattern finds it.
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=".tfdist-", dir=folder)
    try:
        yield os.path.join(scratch, os.path.basename(path))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
