"""Lets the chief write files for all workers: every worker takes part in a save, and one file results."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._paths import text_of_path
from tfdist.saving.scratch import path_to_write, put_in_place, scratch_beside, scratch_elsewhere
from tfdist.workers import LOST_CLUSTER_ERRORS, agree, is_chief


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Saves a model with its optimizer's state as a `.keras` file; every worker calls it.

    Reading some variables (batch statistics, metrics) synchronizes the workers, so that all of them have to take part.
    Only the chief keeps the file that it wrote, and renames the file to `path`, so that no program reads an incomplete
    file. When the function returns on any worker, the file exists.

    Args:
        model: a built Keras model, made under a strategy or under none.
        path: name of the file, ending in .keras.

    Raises:
        ValueError: if the name does not end in .keras.
        OSError: if another worker could not save.

    Example:
        >>> import os, tempfile
        >>> import tensorflow as tf
        >>> from tfdist.saving import save_model
        >>> model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.keras")
        >>> save_model(model, path)
        >>> os.path.exists(path)
        True
    """
    path = text_of_path(path)
    if not path.endswith(".keras"):
        raise ValueError(f"expected a file name that ends in .keras, received {path!r}; append .keras.")
    with written_by_chief(path, model.distribute_strategy) as scratch:
        model.save(scratch)


@contextlib.contextmanager
def written_by_chief(path: str | os.PathLike[str], strategy: tf.distribute.Strategy) -> Iterator[str]:
    """Yields a scratch name to write to, and renames to `path` the files that the chief wrote; every worker enters it.

    The scratch name has the same last part as `path`, in another folder. The body may write several files to that
    folder (shards, the parts of a checkpoint, a folder), and all of them are moved. A worker that passes another path
    than the chief writes a file of its own, which is kept, too. The workers wait for each other before and after the
    body.

    Args:
        path: the name of a file or folder, or the prefix of several files. Its parent folder is created.
        strategy: the strategy under which the workers save.

    Raises:
        OSError: if another worker failed.

    Example:
        >>> import os, tempfile, tfdist
        >>> from tfdist.saving import written_by_chief
        >>> path = os.path.join(tempfile.mkdtemp(), "numbers.txt")
        >>> with written_by_chief(path, tfdist.create_strategy("one_device")) as scratch, open(scratch, "w") as file:
        ...     _ = file.write("1 2 3")
        >>> open(path).read()
        '1 2 3'
    """
    path = path_to_write(path)
    to = f"save {path!r}"
    own = zlib.crc32((path if "://" in path else os.path.abspath(path)).encode())
    with contextlib.ExitStack() as stack:
        scratch, failure = "", None
        try:
            if is_chief(strategy):
                scratch = stack.enter_context(scratch_beside(path))
        except Exception as error:
            failure = error
        chief_path = agree(strategy, [own], failure=failure, to=to)[0]
        keeps = bool(scratch) or chief_path != (own,)
        try:
            if not scratch:
                scratch = stack.enter_context(scratch_beside(path) if keeps else scratch_elsewhere(path))
            yield scratch
            if keeps:
                put_in_place(os.path.dirname(scratch), os.path.dirname(path))
        except LOST_CLUSTER_ERRORS:
            raise
        except Exception as error:
            failure = error
        agree(strategy, [], failure=failure, to=to)
