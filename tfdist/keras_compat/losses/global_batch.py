"""GlobalBatch: the number of rows of one replica and of all replicas, which determine the weights of losses."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.allreduce.update_hook import UpdateHook
from tfdist.keras_compat.losses.divided_sums import are_divided_by_rows, divided_by_rows
from tfdist.keras_compat.losses.noted_gradients import NotedGradients
from tfdist.keras_compat.losses.rule import StepRule

_local = threading.local()


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """The number of rows in a step, of one replica and of all replicas together, and the rule of the step.

    Attributes:
        rows: float32 scalar, number of rows of this replica, a whole number.
        total: float32 scalar, number of rows of all replicas of all workers, a whole number.
        rule: rule of the step function.
        parts: tensors of this replica that the program has divided for all replicas; their sum is the global value.
        static_rows: number of rows of this replica, if it is known while the step is traced.
        means: losses of this replica that are a mean over its rows.
        sums: those of them that `mean_of_sum` returned.
        totals: what this replica has received from all replicas, such as the sum of their numbers of positives.
        targets: tensors that the step has differentiated.
        judged: tensors of this replica of which it is known whether they are sums over rows, by their id.
        judged_sums: those of them for which the model was walked through.
        outputs: the data of the step, and the outputs of layers, by their id.
        functions: values for the global batch of scalars that are functions of sums over rows, by the id of the scalar
            of this replica, and this scalar; None for other scalars.
        gradients: the gradients with respect to variables that the step has computed.
        total_of_inputs: float32 scalar, number of rows of the first inputs of all replicas, which is `total` unless
            targets have other numbers of rows than inputs.
        branch: the graph of a condition that runs on all replicas, in which they wait for each other; None in the step.
    """

    rows: tf.Tensor
    total: tf.Tensor
    rule: StepRule
    parts: list[tf.Tensor] = dataclasses.field(default_factory=list)
    static_rows: int | None = None
    means: list[tf.Tensor] = dataclasses.field(default_factory=list)
    sums: list[tf.Tensor] = dataclasses.field(default_factory=list)
    totals: list[tf.Tensor] = dataclasses.field(default_factory=list)
    targets: list[tf.Tensor] = dataclasses.field(default_factory=list)
    judged: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    judged_sums: list[tf.Tensor] = dataclasses.field(default_factory=list)
    outputs: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    functions: dict[int, tuple[Any, tf.Tensor | None]] = dataclasses.field(default_factory=dict)
    gradients: NotedGradients = dataclasses.field(default_factory=NotedGradients)
    total_of_inputs: tf.Tensor | None = None
    branch: Any = None

    @property
    def graph(self) -> Any:
        """The graph in which replicas can wait for each other; None without a graph."""
        return getattr(self.rows, "graph", None) if self.branch is None else self.branch

    def in_branch(self) -> GlobalBatch:
        """Returns the global batch for a branch of a condition that runs on all replicas, whose graph is the default.

        What is computed there cannot be used outside of it.
        """
        return dataclasses.replace(
            self,
            branch=tf.compat.v1.get_default_graph(),
            functions=dict(self.functions),
            gradients=self.gradients.in_branch(),
        )

    def note_outputs(self, outputs: Any) -> None:
        """Notes tensors of a graph whose first axis may be that of rows.

        Args:
            outputs: the data of the step, or the outputs of a layer.
        """
        flat = tf.nest.flatten(outputs) if isinstance(outputs, (dict, list, tuple)) else [outputs]
        self.outputs.update((id(one), one) for one in flat if isinstance(one, tf.Tensor) and hasattr(one, "graph"))

    def share(self, dtype: Any = tf.float32) -> tf.Tensor:
        """Returns the fraction of all rows that this replica has, a scalar; 0 if no replica has rows.

        Args:
            dtype: the result has this dtype. The fraction is computed in float64 for float64, else in float32.
        """
        return fraction(self.rows, self.total, dtype)

    def times_share(self, value: Any) -> Any:
        """Returns a tensor or IndexedSlices, multiplied by the share of the rows, so that those of replicas add up.

        Args:
            value: of this replica, such as a gradient. None stays None.
        """
        if value is None:
            return None
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self.times_share(value.values), value.indices, value.dense_shape)
        value = tf.convert_to_tensor(value)
        # A mean over no rows is NaN. multiply_no_nan returns 0 where the share is 0.
        return tf.math.multiply_no_nan(value, self.share(value.dtype))

    def mean_of_sum(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a loss that is a sum over rows as a mean over the rows of the replica, whose mean is the global sum.

        Args:
            value: the loss of this replica, a scalar. It is returned itself if the program divides it by its rows.
        """
        is_divided = len(self.sums) in self.rule.divided_sums
        mean = tf.identity(value) if is_divided else tf.math.divide_no_nan(value, self.share(value.dtype))
        self.sums.append(mean)
        self.means.append(mean)
        return mean

    def weights_and_totals(self) -> list[tf.Tensor]:
        """Returns the totals, and the numbers by which tfdist weights a replica: to divide by them makes no mean."""
        return [self.rows, self.total, *self.totals]

    def is_mean_by_weights(self, weights: Any) -> bool:
        """Returns whether weights make a sum over rows a mean: the program has divided them by their sum or number.

        Args:
            weights: the weights of the rows of this replica, or None.
        """
        return self.is_replica_mean and are_divided_by_rows(
            weights, self.static_rows, totals=(*self.sums, *self.weights_and_totals())
        )

    @property
    def is_replica_mean(self) -> bool:
        """Whether the losses of the step are means over the rows of each replica."""
        return self.rule.use() == "replica_mean"


def fraction(part: tf.Tensor, total: tf.Tensor, dtype: Any) -> tf.Tensor:
    """Returns part / total, or 0 if total is 0, a scalar.

    Args:
        part: scalar.
        total: scalar of the same dtype.
        dtype: dtype of the result.
    """
    dtype = tf.as_dtype(dtype)
    exact = tf.float64 if dtype == tf.float64 else tf.float32
    return tf.cast(tf.math.divide_no_nan(tf.cast(part, exact), tf.cast(total, exact)), dtype)


def rows_of(data: Any) -> tf.Tensor:
    """Returns the number of rows of a replica's batch, a float32 scalar.

    A loss is a mean over the rows of the targets. Inputs may have others: the atoms of the molecules of a batch.

    Args:
        data: a replica's batch. The rows of `y` in (x, y) or (x, y, sample_weight) are counted, if it has rows, else
            those of the first tensor.
    """
    return _length(_counted(data))


def _length(values: Any) -> tf.Tensor:
    if isinstance(values, tf.RaggedTensor):
        return tf.cast(values.nrows(), tf.float32)
    shape = values.dense_shape if isinstance(values, tf.SparseTensor) else tf.shape(values)
    return tf.cast(shape[0], tf.float32)


def _counted(data: Any) -> Any:
    """Returns the tensor whose rows are those of the batch."""
    targets = data[1] if isinstance(data, tuple) and len(data) in (2, 3) else None
    with_rows = [one for one in tf.nest.flatten(targets) if one is not None and one.shape.rank != 0]
    return with_rows[0] if with_rows else _first_of(data)


def _first_of(data: Any) -> Any:
    return next(value for value in tf.nest.flatten(data) if value is not None)


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a value over all replicas, with gradients stopped; call it in replica context.

    In a local step, in which replicas do not wait for each other, it is what the hook of the optimizer says.
    """
    hook = getattr(_local, "hook", None)
    if hook is not None:
        return tf.stop_gradient(hook.total(tf.stop_gradient(value)))
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value))
    return tf.stop_gradient(total)


def works_alone() -> bool:
    """Returns whether this replica makes a local step, in which replicas do not wait for each other."""
    return getattr(_local, "hook", None) is not None


@contextlib.contextmanager
def global_batch(data: Any, rule: StepRule, *, hook: UpdateHook | None = None) -> Iterator[GlobalBatch]:
    """Makes `current_batch` return the global batch, within the context and on this thread; yields the global batch.

    Args:
        data: a replica's batch, whose rows are counted as in `rows_of`.
        rule: rule of the step function.
        hook: the hook of the optimizer that makes the step, if replicas make steps without the others.
    """
    counted, first = _counted(data), _first_of(data)
    rows, static_rows = _length(counted), counted.shape[0]
    with temporarily(_local, hook=hook):
        if counted is first:
            total = of_inputs = sum_over_replicas(rows)
        else:
            # One sum of two numbers costs no more than a sum of one. What is known of the rows of a replica does not
            # decide: of the others, which make the same sum, other numbers may be known.
            total, of_inputs = tf.unstack(sum_over_replicas(tf.stack([rows, _length(first)])))
        batch = GlobalBatch(rows, total, rule, static_rows=static_rows, total_of_inputs=of_inputs)
        batch.note_outputs(data)
        with temporarily(_local, batch=batch):
            yield batch
        rule.warn_of_sum()
        divided = divided_by_rows(
            batch.sums, batch.static_rows, totals=batch.weights_and_totals(), targets=frozenset(map(id, batch.targets))
        )
        rule.sees_divided_sums(divided)


def current_batch() -> GlobalBatch | None:
    """Returns the global batch of this replica's thread; None if the global batch is not known."""
    return getattr(_local, "batch", None)


@contextlib.contextmanager
def in_branch(batch: GlobalBatch | None) -> Iterator[None]:
    """Makes `current_batch` return the batch of a step in a branch that runs on all replicas, on another thread."""
    with temporarily(_local, batch=None if batch is None else batch.in_branch()):
        yield


@contextlib.contextmanager
def temporarily(local: threading.local, **values: Any) -> Iterator[None]:
    """Sets attributes of a thread-local object within the context, and restores their earlier values at its end.

    Args:
        local: the thread-local object.
        **values: the attributes and their values; an attribute that did not exist before is None afterwards.
    """
    before = {name: getattr(local, name, None) for name in values}
    vars(local).update(values)
    try:
        yield
    finally:
        vars(local).update(before)
