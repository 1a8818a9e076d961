"""Lets each iteration over a training dataset begin at the next epoch of its order, as in a loop of fits."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.input.state import InputState


class Iterations:
    """Where the next iteration over a dataset begins. All workers make the same iterations.

    An iteration begins at the epoch after the one at which the iteration before began. A fit counts as one iteration,
    however many iterators Keras makes for it, and is followed by the epoch after the last one that it has read.

    Args:
        state: position at which the first iteration begins.
        steps_per_epoch: number of steps of an epoch.
        build: returns a dataset that begins at a position in each iteration.

    Example:
        >>> from tfdist.input.iterations import Iterations
        >>> iterations = Iterations(InputState(), steps_per_epoch=10, build=lambda state: state.epoch)
        >>> iterations.begin(), iterations.begin()
        (InputState(seed=0, epoch=0, step=0, canonical_shards=None), InputState(seed=0, epoch=1, step=0, ...))
        >>> with iterations.one_for(lambda: 25):
        ...     iterations.begin().epoch, iterations.begin().epoch
        (2, 2)
        >>> iterations.begin().epoch
        5
    """

    def __init__(self, state: InputState, *, steps_per_epoch: int, build: Callable[[InputState], Any]) -> None:
        self._first, self._steps_per_epoch, self._build = state, steps_per_epoch, build
        self._next, self._is_held = state, False

    @property
    def current(self) -> InputState:
        """Position at which the next iteration begins, or the current one within a fit."""
        return self._next

    @property
    def epochs_before(self) -> int:
        """Number of epochs from the first iteration to the next one, or to the current one within a fit."""
        return self._next.epoch - self._first.epoch

    def go_to(self, epochs_before: int) -> None:
        """Makes the next iteration, or the current one within a fit, begin some epochs after the first iteration.

        Args:
            epochs_before: what the attribute was.
        """
        self._next = self._first
        if epochs_before:
            self._next = dataclasses.replace(self._first, epoch=self._first.epoch + epochs_before, step=0)

    def begin(self) -> InputState:
        """Returns the position at which an iteration begins that is being made now."""
        begun = self._next
        if not self._is_held:
            self._move(1)
        return begun

    @contextlib.contextmanager
    def one_for(self, steps_read: Callable[[], int]) -> Iterator[None]:
        """Lets all iterators that the body makes begin at the same position.

        Args:
            steps_read: returns how many steps the body has read, also after an error.
        """
        was_held, self._is_held = self._is_held, True
        try:
            yield
        finally:
            self._is_held = was_held
            if not was_held:
                self._move(max(1, steps_read()))

    def at_step(self, steps: int) -> Any:
        """Returns the dataset that begins some steps after the position of the current iteration.

        Args:
            steps: number of steps.
        """
        return self._build(self._next.after(steps, steps_per_epoch=self._steps_per_epoch))

    def iterator(self, state: InputState) -> Any:
        """Returns an iterator that begins at a position.

        Args:
            state: the position.
        """
        dataset = self._build(state)
        iterator = iter(dataset)
        # Kept as long as the iterator, since it owns what it keeps in memory.
        iterator._tfdist_dataset = dataset
        return iterator

    def _move(self, steps: int) -> None:
        """Moves to the first epoch that begins after some steps."""
        end = self._next.after(steps, steps_per_epoch=self._steps_per_epoch)
        self._next = dataclasses.replace(end, epoch=end.epoch + (end.step > 0), step=0)


def let_iterations_differ(dataset: Any, iterations: Iterations) -> Any:
    """Returns the same dataset, after making each `iter(dataset)` begin where `iterations` says.

    Args:
        dataset: a distributed dataset or a dataset, which begins at the first position.
        iterations: where its iterations begin.
    """
    dataset.iterations = iterations
    if isinstance(dataset, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        # `iter` looks for the method in the class.
        stock: Any = type(dataset)
        dataset.__class__ = _with_iterations(stock)
    return dataset


@functools.cache
def _with_iterations(stock: Any) -> type:
    def __iter__(self: Any) -> Any:
        if not tf.executing_eagerly():
            # The function that is being traced would begin at this position each time.
            return stock.__iter__(self)
        state = self.iterations.begin()
        return stock.__iter__(self) if state == self.state else self.iterations.iterator(state)

    return type(stock.__name__, (stock,), {"__iter__": __iter__, "__module__": stock.__module__})
