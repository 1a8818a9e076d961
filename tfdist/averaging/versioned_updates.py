"""VersionedUpdates: updates of variables on parameter servers, with a version, one at a time.

The first parameter server holds a vector of versions, the counts, and a critical section. A step reads the versions
before it reads the weights. When its gradients have arrived, an update runs in the critical section: it reads the
version again, decides by the difference, updates the weights and slots, and increases the version and the counts.

Why a critical section and not atomic additions: a worker must decide from the version (drop, scale, or wait for more
gradients), and then change the version. With atomic operations alone, another worker's update may come in between, and
a gradient would be applied that is staler than `drop_above`. In the critical section, version N means that N updates
are complete, their slots included, and that their order is the order of the versions. The weights are read outside of
the section, after the version: they may be newer than the version says, but not older, so that tau is never too small.

All operations of the section are placed on the parameter servers, and the gradients are copied there before the section
begins, so that a slow worker does not keep the section. If its worker dies, TensorFlow ends the step on the
parameter servers too, which frees the mutex. An update that is stopped in the middle may have changed variables, as it
may without the section; it is not counted.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.averaging.soft_sync import Accumulators
from tfdist.averaging.staleness import INVERSE, Staleness, StalenessCounts
from tfdist.keras_compat.optimizers.base import held_variable
from tfdist.keras_compat.optimizers.scaled_rate import scaled_rate

DEVICE = "/job:ps/replica:0/task:0/device:CPU:0"
_MOST_OPTIMIZERS = 64
_BINS = 65
# Entries of the counts of an optimizer; the histogram follows.
_UPDATES, _APPLIED, _DROPPED, _WAITING = range(4)
_HISTOGRAM = 4


class VersionedUpdates:
    """The versions and counts of the optimizers of one strategy.

    Args:
        strategy: a parameter-server strategy, on its coordinator.
        staleness: what to do with gradients of old weights.
    """

    _owners: ClassVar[weakref.WeakKeyDictionary[Any, VersionedUpdates]] = weakref.WeakKeyDictionary()

    def __init__(self, strategy: tf.distribute.Strategy, staleness: Staleness) -> None:
        self.staleness = staleness
        self._strategy = weakref.ref(strategy)
        self._rows: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._accumulators: weakref.WeakKeyDictionary[Any, Accumulators] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._local = threading.local()
        with tf.init_scope(), tf.device(DEVICE):
            self._versions = tf.Variable(tf.zeros([_MOST_OPTIMIZERS], tf.int64), trainable=False, name="versions")
            counts = tf.zeros([_MOST_OPTIMIZERS, _HISTOGRAM + _BINS], tf.int64)
            self._counts = tf.Variable(counts, trainable=False, name="staleness")
            self._section = tf.CriticalSection(shared_name=f"tfdist-updates-{uuid.uuid4().hex}")

    @classmethod
    def of(cls, optimizer: Any) -> VersionedUpdates | None:
        """Returns the updates that an optimizer was used with, or None."""
        try:
            return cls._owners.get(optimizer)
        except TypeError:
            return None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A context for a step in replica context: the versions are read before all that the step reads in it."""
        with tf.device(DEVICE):
            versions = tf.identity(self._versions.read_value())
        outer, self._local.versions = getattr(self._local, "versions", None), versions
        try:
            with tf.control_dependencies([versions]):
                yield
        finally:
            self._local.versions = outer

    @property
    def is_updating(self) -> bool:
        """Whether an update is being traced by this thread, so that the optimizer's own update is called."""
        return getattr(self._local, "is_updating", False)

    def read_versions(self) -> tf.Tensor:
        """Returns the versions that the step read.

        Raises:
            ValueError: outside of a step that `strategy.run` runs in a tf.function.
        """
        read = getattr(self._local, "versions", None)
        if read is None:
            raise ValueError(
                "expected the optimizer to be called in a function that strategy.run calls in a tf.function, because "
                "the version of the weights is read where strategy.run begins, received a call outside of it; compute "
                "the gradients and call the optimizer in strategy.run."
            )
        return read

    def update(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], apply: Callable) -> None:
        """Updates variables with gradients, or drops or keeps the gradients, as the options say.

        Args:
            optimizer: the optimizer, built.
            gradients: the gradients of this worker; None where a variable has none.
            variables: the variables to update.
            apply: calls the optimizer's own update with a list of gradients.

        Raises:
            ValueError: outside of a step that `strategy.run` runs in a tf.function.
        """
        read = self.read_versions()
        row = self._row(optimizer)
        accumulators = self._accumulators_of(optimizer, variables)
        gradients = [_at(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]

        def section() -> tf.Tensor:
            tau = self._versions.read_value()[row] - read[row]
            waiting = self._counts.read_value()[row, _WAITING]
            keeps = tf.constant(True) if self.staleness.drop_above is None else tau <= self.staleness.drop_above
            factor = self._factor(tau)

            def use() -> tf.Tensor:
                if accumulators is None:
                    return self._apply(optimizer, gradients, factor, apply)
                return accumulators.add(
                    gradients,
                    variables,
                    factor,
                    waiting=waiting,
                    update=lambda means, mean_factor: self._apply(optimizer, means, mean_factor, apply),
                )

            # Both results depend on all operations of their branch, since tf.cond traces functions.
            updates = tf.cond(keeps, use, lambda: tf.zeros([], tf.int64))
            with tf.control_dependencies([updates]):
                return self._count(row, tau, tf.cast(keeps, tf.int64), updates)

        with tf.device(DEVICE):
            self._section.execute(section)

    def counts(self, optimizers: Sequence[Any] | None = None) -> StalenessCounts:
        """Returns the sums of the counts of some optimizers, or of all of them."""
        asked = list(self._rows) if optimizers is None else optimizers
        row = self._counts.numpy()[sorted({self._rows[one] for one in asked if one in self._rows})].sum(axis=0)
        return StalenessCounts(
            updates=int(row[_UPDATES]),
            applied=int(row[_APPLIED]),
            dropped=int(row[_DROPPED]),
            waiting=int(row[_WAITING]),
            histogram=tuple(int(count) for count in row[_HISTOGRAM:]),
        )

    def _factor(self, tau: tf.Tensor) -> tf.Tensor | None:
        scale = self.staleness.scale
        if scale is None:
            return None
        if scale == INVERSE:
            return 1.0 / tf.cast(tf.maximum(tau, 1), tf.float64)
        assert callable(scale)
        factor = tf.cast(tf.convert_to_tensor(scale(tau)), tf.float64)
        if factor.shape.rank not in (0, None):
            raise ValueError(
                "expected staleness.scale to return a scalar for the scalar tau, received a tensor of shape "
                f"{tuple(factor.shape)}."
            )
        return factor

    def _apply(self, optimizer: Any, gradients: Sequence[Any], factor: tf.Tensor | None, apply: Callable) -> tf.Tensor:
        strategy = self._strategy()
        assert strategy is not None
        # The context of the step switches threads in merge_call, which TensorFlow refuses inside of tf.cond. With one
        # replica a plain ReplicaContext does the same without threads.
        self._local.is_updating = True
        try:
            with tf.distribute.ReplicaContext(strategy, 0), scaled_rate(optimizer, factor):
                apply(gradients)
        finally:
            self._local.is_updating = False
        return tf.ones([], tf.int64)

    def _count(self, row: int, tau: tf.Tensor, kept: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        """Adds one gradient to the counts, and the update to the version."""
        per_update = self.staleness.gradients_per_update
        applied = updates * per_update
        counts = tf.stack([updates, applied, 1 - kept, kept - applied])
        histogram = tf.one_hot(tf.minimum(tau, _BINS - 1), _BINS, dtype=tf.int64)
        added = self._counts.assign_add(_in_row(row, tf.concat([counts, histogram], axis=0)), read_value=False)
        newer = self._versions.assign_add(tf.one_hot(row, _MOST_OPTIMIZERS, dtype=tf.int64) * updates, read_value=False)
        with tf.control_dependencies([op for op in (added, newer) if op is not None]):
            return tf.identity(tau)

    def _row(self, optimizer: Any) -> int:
        with self._lock:
            if optimizer not in self._rows:
                free = sorted(set(range(_MOST_OPTIMIZERS)) - set(self._rows.values()))
                if not free:
                    raise ValueError(
                        f"expected at most {_MOST_OPTIMIZERS} optimizers at a time with staleness, received another "
                        "one; delete optimizers that are not in use."
                    )
                with tf.init_scope():
                    # A row may have been that of an optimizer that is gone.
                    left = tf.gather(self._counts.read_value(), free[0])
                    self._counts.assign_sub(_in_row(free[0], left), read_value=False)
                self._rows[optimizer] = free[0]
                type(self)._owners[optimizer] = self
            return self._rows[optimizer]

    def _accumulators_of(self, optimizer: Any, variables: Sequence[Any]) -> Accumulators | None:
        if self.staleness.gradients_per_update == 1:
            return None
        with self._lock:
            if optimizer not in self._accumulators:
                self._accumulators[optimizer] = Accumulators(self.staleness.gradients_per_update)
            accumulators = self._accumulators[optimizer]
            tf.distribute.get_replica_context().merge_call(lambda strategy: accumulators.prepare(strategy, variables))
            return accumulators


def _in_row(row: int, values: tf.Tensor) -> tf.Tensor:
    """Returns a table of the counts that has values in one row, and zeros in the others."""
    return tf.one_hot(row, _MOST_OPTIMIZERS, dtype=tf.int64)[:, tf.newaxis] * values


def _at(gradient: Any, variable: Any) -> Any:
    """Returns a copy of a gradient on the device of its variable."""
    if gradient is None:
        return None
    with tf.device(held_variable(variable).device):
        return tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
