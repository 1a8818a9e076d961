"""Files that one worker writes: every worker takes part in a save, one file results, complete or not at all."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import tempfile
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger

_PATIENCE_SECONDS = 60.0
# After one of these the cluster is beyond agreeing on anything.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files for the whole cluster.

    Args:
        strategy: any strategy; all but the multi-worker ones have one process only that runs the program.
    """
    return bool(getattr(strategy.extended, "should_checkpoint", True))


def strategy_of_workers(model: Any) -> tf.distribute.Strategy | None:
    """Returns the strategy that a model was made under if several workers train it, nothing otherwise.

    Args:
        model: a model of Keras 3, or of Keras 2, which names the strategy otherwise.
    """
    strategy = getattr(model, "_distribute_strategy", None) or getattr(model, "_distribution_strategy", None)
    return strategy if _count_workers(strategy) > 1 else None


def follows(model: Any) -> bool:
    """Whether another worker is the chief of this model's training."""
    strategy = strategy_of_workers(model)
    return strategy is not None and not is_chief(strategy)


def save_model(model: Any, path: str) -> None:
    """Saves a model, optimizer state included, as a `.keras` file; to be called by every worker.

    Reading some variables (batch statistics, metrics) synchronizes the workers, so that all of them have to take part;
    the chief alone keeps what it wrote, and renames it into place, so that nobody can read half a file. When it
    returns, on any worker, the file is there.

    Args:
        model: a built Keras model, made under a strategy or under none.
        path: name of the file, ending in .keras.

    Raises:
        ValueError: if the name does not end in .keras.
        OSError: if another worker could not save.

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
    with written_by_chief(path, model.distribute_strategy) as scratch:
        model.save(scratch)


def saved_by_chief(stock: Callable) -> Callable:
    """Returns what makes one file of a Keras function that saves, for models that several workers train.

    Args:
        stock: takes a model, a path or a file object, and options.
    """
    signature = inspect.signature(stock)

    def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of_workers(model)
        # An upload to a hub has no name to rename, an open file is none of ours.
        if strategy is None or not isinstance(filepath, (str, os.PathLike)) or str(filepath).startswith("hf://"):
            return stock(model, filepath, *args, **kwargs)
        path = os.fspath(filepath)
        overwrite = signature.bind(model, path, *args, **kwargs).arguments.get("overwrite", True)
        if not overwrite and not _may_overwrite(path, inspect.getmodule(stock)):
            return None
        with written_by_chief(path, strategy) as scratch:
            return stock(model, scratch, *args, **kwargs)

    return save


def _may_overwrite(path: str, module: Any) -> bool:
    # Keras looks whether the file exists under the name that it is given, which is a new one here.
    if os.path.exists(path) or os.path.exists(f"{path}.index"):
        return bool(module.io_utils.ask_to_proceed_with_overwrite(path))
    return True


@contextlib.contextmanager
def written_by_chief(path: str, strategy: tf.distribute.Strategy) -> Iterator[str]:
    """Gives the body a scratch name to write to; what the chief wrote is renamed into place. For every worker to enter.

    The scratch name has the last part of `path`, in another folder: the body may write several files there (shards, the
    parts of a checkpoint, a folder), and all of them are moved. A worker that names another path than the chief does
    has a file of its own, which is kept too. On the way in and out the workers wait for each other.

    Args:
        path: of a file or folder, or the prefix of several; its folder is made.
        strategy: the strategy under which the workers save.

    Raises:
        OSError: if another worker failed.
    """
    what = f"save {path!r}"
    own = zlib.crc32((path if "://" in path else os.path.abspath(path)).encode())
    with contextlib.ExitStack() as stack:
        scratch, failure = "", None
        try:
            if is_chief(strategy):
                scratch = stack.enter_context(_scratch_beside(path))
        except Exception as error:
            failure = error
        chief_path = _agree(strategy, what, failure, [own])[0]
        keeps = bool(scratch) or chief_path != (own,)
        try:
            if not scratch:
                scratch = stack.enter_context(_scratch_beside(path) if keeps else _scratch_elsewhere(path))
            yield scratch
            if keeps:
                _put_in_place(os.path.dirname(scratch), os.path.dirname(path))
        except _LOST:
            raise
        except Exception as error:
            failure = error
        _agree(strategy, what, failure, [])


@contextlib.contextmanager
def replaced(path: str) -> Iterator[str]:
    """Gives the body a scratch name to write to, which is renamed to `path` unless the body fails.

    Args:
        path: as in written_by_chief; this is for the one process that writes it.
    """
    with _scratch_beside(path) as scratch:
        yield scratch
        _put_in_place(os.path.dirname(scratch), os.path.dirname(path))


def run_on_every_worker(
    strategy: tf.distribute.Strategy, what: str, action: Callable[[], Sequence[int]], *, width: int
) -> list[tuple[int, ...]]:
    """Runs an action on every worker and returns what it returned on each, the chief's first.

    Args:
        strategy: the strategy of the workers.
        what: what they do, such as "save 'model.keras'", for messages.
        action: returns whole numbers.
        width: how many.

    Raises:
        OSError: if it failed on another worker; its own error on the worker where it failed.
    """
    failure: Exception | None = None
    numbers: Sequence[int] = [0] * width
    try:
        numbers = action()
    except _LOST:
        raise
    except Exception as error:
        failure = error
    return _agree(strategy, what, failure, numbers)


def _agree(
    strategy: tf.distribute.Strategy, what: str, failure: Exception | None, numbers: Sequence[int]
) -> list[tuple[int, ...]]:
    """Waits for every worker and returns the numbers of each; raises on all of them if one has failed."""
    rows = _exchange(strategy, what, [int(failure is not None), *numbers])
    if failure is not None:
        raise failure
    failed = [worker for worker, row in enumerate(rows) if row[0]]
    if failed:
        raise OSError(
            f"expected every worker to {what}, received an error on worker {failed[0]}; mend what its log reports."
        )
    return [row[1:] for row in rows]


def _exchange(strategy: tf.distribute.Strategy, what: str, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    workers = _count_workers(strategy)
    if workers == 1:
        return [tuple(numbers)]
    replicas = strategy.num_replicas_in_sync // workers

    def own_row(context: Any) -> tf.Tensor:
        worker, replica = divmod(context.replica_id_in_sync_group, replicas)
        rows = [[0] * len(numbers) for _ in range(workers)]
        if replica == 0:
            rows[worker] = list(numbers)
        # Whole numbers are neither rounded nor compressed on their way.
        return tf.constant(rows, tf.int64)

    with _saying_what_it_waits_for(what):
        rows = strategy.experimental_distribute_values_from_function(own_row)
        table = strategy.reduce(tf.distribute.ReduceOp.SUM, rows, axis=None)
        return [tuple(row) for row in table.numpy().tolist()]


@contextlib.contextmanager
def _saying_what_it_waits_for(what: str) -> Iterator[None]:
    text = "still waiting after %.0f s for every worker to %s: all of them have to call it, in the same order"
    timer = threading.Timer(_PATIENCE_SECONDS, get_logger().warning, (text, _PATIENCE_SECONDS, what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _count_workers(strategy: tf.distribute.Strategy | None) -> int:
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return int(strategy.extended._num_workers)
    return 1


@contextlib.contextmanager
def _scratch_beside(path: str) -> Iterator[str]:
    # In the same folder, so that renaming does not cross file systems; hidden, so that no pattern finds it.
    folder = os.path.dirname(path)
    if "://" in path:
        scratch = os.path.join(folder, f".tfdist-{uuid.uuid4().hex[:8]}")
        tf.io.gfile.makedirs(scratch)
    else:
        os.makedirs(folder or ".", exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=".tfdist-", dir=folder or ".")
    try:
        yield os.path.join(scratch, os.path.basename(path))
    finally:
        if "://" in path:
            tf.io.gfile.rmtree(scratch)
        else:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _scratch_elsewhere(path: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tfdist-", ignore_cleanup_errors=True) as scratch:
        yield os.path.join(scratch, os.path.basename(path))


def _put_in_place(scratch: str, folder: str) -> None:
    """Moves what is in a scratch folder, each file at once and in an order in which readers find whole things."""
    remote = "://" in folder
    names = tf.io.gfile.listdir(scratch) if remote else os.listdir(scratch)
    for name in sorted((name.rstrip("/") for name in names), key=_when_to_move):
        source, target = os.path.join(scratch, name), os.path.join(folder, name)
        if tf.io.gfile.isdir(source) and tf.io.gfile.exists(target):
            # Keras writes into a folder that is there, and leaves in it what it does not write.
            _put_in_place(source, target)
        elif remote:
            tf.io.gfile.rename(source, target, overwrite=True)
        else:
            os.replace(source, target)


def _when_to_move(name: str) -> tuple[int, str]:
    """Sorts the file that names the others behind them: an index of shards, a SavedModel's graph, `checkpoint`."""
    return (2 if name == "checkpoint" else int(name.endswith((".index", ".json", ".pb"))), name)


def logged_by_chief(stock: Callable) -> Callable:
    """Returns what keeps CSVLogger.on_train_begin from opening the file of another worker than the chief.

    Args:
        stock: the method.
    """

    def on_train_begin(self: Any, logs: Any = None) -> Any:
        if not follows(self.model):
            return stock(self, logs)
        filename, self.filename = self.filename, os.devnull
        try:
            return stock(self, logs)
        finally:
            self.filename = filename

    return on_train_begin
