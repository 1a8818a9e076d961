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

    @property
    def num_batches(self) -> int | None:
        """Number of batches of the dataset, which Keras may learn only at the end of the first epoch."""
        return self._iterator._num_batches

    @property
    def dataset(self) -> Any:
        """What fit reads: a dataset, or a distributed dataset."""
        return self._iterator._distributed_dataset

    def begin(self, model: Any) -> None:
        """Forgets what an earlier fit of the model has been restored to, which Keras does not.

        Args:
            model: the model in fit.
        """
        model._initial_epoch = None

    def go_to(self, model: Any, *, epochs: int, epoch: int, step: int, steps: int, num_batches: int | None) -> None:
        """Makes the next epoch begin at a step.

        Args:
            model: the model in fit.
            epochs: number of complete epochs before.
            epoch: number of the next epoch.
            step: number of steps in the current epoch.
            steps: number of steps in all epochs together.
            num_batches: what the attribute was at this position.
        """
        model._initial_epoch = epoch
        if is_asynchronous(model):
            return
        self._iterator._num_batches = num_batches
        sought = moved_in_fit(self._iterator._distributed_dataset, steps)
        if sought is not None:
            self._iterator._distributed_dataset = sought
        self._iterator._tfdist_start = (epochs, step, sought is not None)

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
        epochs, step, can_seek = self.__dict__.pop("_tfdist_start", (0, 0, True))
        # With steps_per_epoch one iterator serves all epochs; otherwise each epoch has an iterator of its own.
        is_shared = self.steps_per_epoch is not None
        reads = epochs and not can_seek and (is_shared or depends_on_earlier_epochs(self._distributed_dataset))
        for _ in range(epochs):
            for *_, iterator in stock(self):
                if reads:
                    read_batches(iterator, self.steps_per_execution)
        # Since Keras 3.11 the last step of an execution stands beside the first.
        for first, *last, iterator in stock(self):
            if first < step:
                if not can_seek:
                    read_batches(iterator, min(self.steps_per_execution, step - first))
                continue
            say_what_was_read()
            yield first, *last, iterator

    return enumerate_iterator
