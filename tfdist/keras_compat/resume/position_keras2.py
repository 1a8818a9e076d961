"""Lets Keras 2's fit begin at a step in the middle of an epoch.

Keras 2 counts epochs and steps from a stored position, but gives them data that has not been read before. This file
patches the data handler of fit when AutoResume is first used: before the first epoch of a fit that goes on, the data
handler repeats what it did before the interruption. It makes the same iterators of the dataset, and reads the batches
that had been read from the current one. Of data whose epochs depend on each other, it reads all epochs again.

Source: DataHandler in Keras 2's data_adapter.py; no upstream issue is known.
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
from tfdist.keras_compat.version import engine_module


class TrainingData:
    """The data of a fit in progress, and its position.

    Args:
        handler: the data handler of the fit.
    """

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._former: int | None = None

    @property
    def num_batches(self) -> int | None:
        """Number of batches of an epoch, which Keras may learn only at the end of the first epoch."""
        own = self.steps_of_epoch
        return self._former if own is None else own

    @property
    def steps_of_epoch(self) -> int | None:
        """Number of steps of an epoch, as far as the data or the options of fit say it."""
        steps = self._handler._inferred_steps
        return None if steps is None else int(steps)

    @property
    def dataset(self) -> Any:
        """What fit reads: a dataset, or a distributed dataset."""
        return self._handler._dataset

    @property
    def is_shuffled(self) -> bool:
        """Whether Keras shuffles the batches of a PyDataset or Sequence, with the module `random`."""
        # Only the adapter of a Sequence has the attribute.
        return bool(getattr(self._handler._adapter, "_shuffle_sequence", False))

    def begin(self, model: Any) -> None:
        """Does nothing: Keras 2 stores in each fit where the fit begins.

        Args:
            model: the model in fit.
        """

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
        if is_asynchronous(model):
            self._handler._initial_epoch = epoch
            return
        self._former, sought = num_batches, None
        if self.steps_of_epoch is not None and not self._handler._adapter.should_recreate_iterator():
            # The same iterator serves the epochs that follow.
            sought = moved_in_fit(self._handler._dataset, epochs * self.steps_of_epoch + begin)
        if sought is not None:
            self._handler._dataset = sought
        self._handler._tfdist_start = (epochs, begin, step, sought is not None, num_batches)

    def end(self, model: Any) -> None:
        """Makes fit end without another epoch."""
        self._handler._tfdist_start = None


def training_data() -> TrainingData:
    """Returns the data of the fit that this thread has begun; called by a callback's on_train_begin."""
    return TrainingData(newest_data())


@functools.cache
def watch_training_data() -> None:
    """Patches the data handler of fit. Later calls do nothing."""
    handler = engine_module("data_adapter").DataHandler
    remember_newest(handler)
    handler.enumerate_epochs = _beginning_at_a_step(handler.enumerate_epochs)
    handler.steps = _showing_a_step(handler.steps)


def _beginning_at_a_step(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def enumerate_epochs(self: Any) -> Iterator[tuple[int, Any]]:
        start = self.__dict__.pop("_tfdist_start", (0, 0, 0, True, None))
        if start is None:
            return
        epochs, begin, step, can_seek, num_batches = start
        done = 0
        own = self._inferred_steps
        # One iterator serves all epochs, or each epoch has an iterator of its own.
        is_shared = not self._adapter.should_recreate_iterator()
        reads = epochs and not can_seek and (is_shared or depends_on_earlier_epochs(self._dataset))
        for epoch, iterator in stock(self):
            if done < epochs:
                if reads:
                    read_batches(iterator, int(num_batches if own is None else own))
                done += 1
                continue
            if step:
                read_batches(iterator, 0 if can_seek else begin)
                self._tfdist_shown, step = (begin, step), 0
            say_what_was_read()
            yield epoch, iterator

    return enumerate_epochs


def _showing_a_step(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def steps(self: Any) -> Iterator[int]:
        shown = self.__dict__.pop("_tfdist_shown", None)
        if shown is not None:
            # The execution before the step may have had another number of steps than those that follow.
            begin, self._initial_step = shown
            self._step_increment = self._initial_step - begin - 1
            yield begin
        yield from stock(self)

    return steps
