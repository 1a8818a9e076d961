"""Lets Keras 3's fit begin at a step in the middle of an epoch.

Keras 3 can begin at any epoch, but only with its first batch, and with data that has not been read before. This file
patches the epoch iterator of fit when AutoResume is first used: before the first epoch of a fit that goes on, the epoch
iterator repeats what it did before the interruption. It makes the same iterators of the dataset, and reads the batches
that had been read from the current one. Of data whose epochs depend on each other, it reads all epochs again.

Source: TFEpochIterator and EpochIterator in Keras 3. BackupAndRestore stores the number of the batch and restores only
the epoch; no upstream issue is known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.keras_compat.resume.data_of_fit import (
    depends_on_earlier_epochs,
    is_asynchronous,
    moved_in_fit,
    newest_data,
    read_batches,
    remember_newest,
    say_what_was_read,
)


class TrainingData:
    """The data of a fit in progress, and its position.

    Args:
        iterator: the epoch iterator of the fit.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._former: int | None = None

    @property
    def num_batches(self) -> int | None:
        """Number of batches of the dataset, which Keras may learn only at the end of the first epoch."""
        own = self._iterator._num_batches
        return self._former if own is None else own

    @property
    def steps_of_epoch(self) -> int | None:
        """Number of steps of an epoch, as far as the data or the options of fit say it."""
        return self._iterator.num_batches

    @property
    def dataset(self) -> Any:
        """What fit reads: a dataset, or a distributed dataset."""
        return self._iterator._distributed_dataset

    @property
    def is_shuffled(self) -> bool:
        """Whether Keras shuffles the batches of a PyDataset or Sequence, with the module `random`."""
        adapter = self._iterator.data_adapter
        return bool(hasattr(adapter, "py_dataset") and adapter.shuffle)

    def begin(self, model: Any) -> None:
        """Forgets what an earlier fit of the model has been restored to, which Keras does not.

        Args:
            model: the model in fit.
        """
        model._initial_epoch = None

    def go_to(self, model: Any, *, epochs: int, epoch: int, begin: int, step: int, num_batches: int | None) -> None:
        """Makes the next epoch begin at a step, after showing the execution before it again.

        Args:
            model: the model in fit.
            epochs: number of complete epochs before.
            epoch: number of the next epoch.
            begin: number of the first step of the execution to show again.
            step: number of steps in the current epoch; 0 shows nothing again.
            num_batches: what the attribute was at this position, which counts if the data does not say it.
        """
        model._initial_epoch = epoch
        if is_asynchronous(model):
            return
        self._former = num_batches
        sought = None
        if self._iterator.steps_per_epoch is not None:
            # The same iterator serves the epochs that follow.
            sought = moved_in_fit(self._iterator._distributed_dataset, epochs * self._iterator.steps_per_epoch + begin)
        if sought is not None:
            self._iterator._distributed_dataset = sought
        self._iterator._tfdist_start = (epochs, begin, step, sought is not None, num_batches)

    def end(self, model: Any) -> None:
        """Makes fit end without another epoch."""
        # More epochs than fit has.
        model._initial_epoch = 1 << 62


def training_data() -> TrainingData:
    """Returns the data of the fit that this thread has begun; called by a callback's on_train_begin."""
    return TrainingData(newest_data())


@functools.cache
def watch_training_data() -> None:
    """Patches the epoch iterator of fit. Later calls do nothing."""
    from keras.src.backend.tensorflow import trainer  # noqa: F401 (defines a subclass)
    from keras.src.trainers.epoch_iterator import EpochIterator

    remember_newest(EpochIterator)
    # The mend for parameter servers replaces the name of the class in its module.
    iterator = next(one for one in EpochIterator.__subclasses__() if one.__name__ == "TFEpochIterator")
    iterator._enumerate_iterator = _beginning_at_a_step(iterator._enumerate_iterator)


def _beginning_at_a_step(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def enumerate_iterator(self: Any) -> Iterator[tuple[Any, ...]]:
        start = self.__dict__.pop("_tfdist_start", None)
        if start is None:
            yield from stock(self)
            return
        epochs, begin, step, can_seek, num_batches = start
        # With steps_per_epoch one iterator serves all epochs; otherwise each epoch has an iterator of its own.
        is_shared = self.steps_per_epoch is not None
        reads = epochs and not can_seek and (is_shared or depends_on_earlier_epochs(self._distributed_dataset))
        own = self._num_batches
        self._num_batches = num_batches if own is None else own
        for _ in range(epochs):
            for *_, iterator in stock(self):
                if reads:
                    # The last execution may be shorter, and Keras counts one too many if the data does not say it.
                    read_batches(iterator, self.steps_per_execution, may_end=not is_shared)
        # Keras learns it again from data that does not say it, since the data may have changed.
        self._num_batches = own
        yield from _from_step(self, stock(self), begin=0 if can_seek else begin, shown=begin, step=step)

    return enumerate_iterator


def _from_step(
    iterator: Any, executions: Iterator[tuple[Any, ...]], *, begin: int, shown: int, step: int
) -> Iterator[tuple[Any, ...]]:
    """Yields the execution that ends before a step, and those that follow, whatever the size of the first one was.

    Args:
        iterator: the epoch iterator.
        executions: the executions of the whole epoch: first step, last step since Keras 3.11, and iterator.
        begin: number of batches to read before.
        shown: first step of the execution that ends before `step`.
        step: first step of the execution after it; 0 for the whole epoch.
    """
    size = iterator.steps_per_execution
    shift = step % size
    is_first = True
    for first, *last, batches in executions:
        if is_first:
            read_batches(batches, begin)
            say_what_was_read()
            if step:
                yield shown, *(step - 1 for _ in last), batches
            is_first = False
        is_over = iterator.num_batches is not None and first + shift >= iterator.num_batches
        if first + size > step and not is_over:
            yield first + shift, *(one + shift for one in last), batches
