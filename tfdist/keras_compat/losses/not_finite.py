"""LossWatch: reports a loss that is not finite, once, with its step and its replica.

A loss is what a train step differentiates with respect to variables, before a loss scale is applied. If the step
differentiates inside of a function of its own, whose tensors the step cannot read, the logs are looked at whose name
contains "loss". The loss of a replica without rows is not looked at, because a mean over no rows is NaN.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.keras_compat.losses.global_batch import current_batch, temporarily
from tfdist.workers import count_workers, worker_index

_local = threading.local()


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """A loss that is not finite.

    Attributes:
        step: number of the step since the beginning of fit, from 1.
        replica: number of the replica among all replicas.
        value: the loss, as text: "nan", "inf" or "-inf".
    """

    step: int
    replica: int
    value: str


def describe(findings: list[Finding], *, worker: int | None) -> str:
    """Returns the sentence that reports the earliest of some findings.

    Args:
        findings: at least one finding.
        worker: index of the worker that found them; None if there is only one worker.

    Example:
        >>> from tfdist.keras_compat.losses.not_finite import Finding, describe
        >>> describe([Finding(17, 3, "nan"), Finding(18, 2, "nan")], worker=1).split(";")[0]
        'the loss of replica 3 (worker 1) is not finite (nan) in step 17'
    """
    first = sorted(set(findings))
    step = first[0].step
    first = [finding for finding in first if finding.step == step]
    replicas = sorted({finding.replica for finding in first})
    values = sorted({finding.value for finding in first})
    named = " and ".join(filter(None, [", ".join(map(str, replicas[:-1])), str(replicas[-1])]))
    subject = f"the loss of replica {named}" if len(replicas) == 1 else f"the losses of replicas {named}"
    where = "" if worker is None else f" (worker {worker})"
    verb = "is" if len(replicas) == 1 else "are"
    return (
        f"{subject}{where} {verb} not finite ({', '.join(values)}) in step {step}; check the rows of this step and the "
        "learning rate. Later losses of this fit that are not finite are not reported."
    )


class LossWatch:
    """Looks at the losses of the replicas of this worker in each train step of a model.

    Args:
        strategy: the strategy of the model.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._worker = worker_index(strategy) if count_workers(strategy) > 1 else None
        self._findings: list[Finding] = []
        self._reported = False

    def begin(self) -> None:
        """Forgets the findings of the previous fit."""
        self._findings, self._reported = [], False

    @contextlib.contextmanager
    def step(self) -> Iterator[list[tf.Tensor]]:
        """Context of a replica's step; yields the list to which the losses that the step differentiates are added."""
        with temporarily(_local, losses=[], scaled=[]):
            yield _local.losses

    def look(self, losses: list[tf.Tensor], logs: Any, step: tf.Tensor) -> None:
        """Adds the operations that look at the losses of a replica; called at the end of its step.

        Args:
            losses: the losses that the step has differentiated.
            logs: the logs that the step has returned.
            step: int64 scalar, number of the step since the beginning of fit, from 1.
        """
        batch = current_batch()
        found = [loss for loss in losses if _is_readable(loss)] or _losses_in(logs)
        if batch is None or not found:
            return
        values = [tf.cast(tf.reduce_sum(loss) if loss.shape.rank else loss, tf.float64) for loss in found]
        values = [tf.where(batch.rows > 0, value, tf.zeros_like(value)) for value in values]
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        # On an accelerator, the condition would copy its predicate to the host, and then the losses.
        with tf.device("CPU:0"):
            stacked = tf.stack(values)
            tf.cond(
                tf.reduce_all(tf.math.is_finite(stacked)),
                lambda: tf.constant(False),
                lambda: tf.numpy_function(self._note, [step, replica, stacked], tf.bool),
            )

    def _note(self, step: np.ndarray, replica: np.ndarray, values: np.ndarray) -> np.bool_:
        if not self._reported:
            value = next((float(value) for value in values if not np.isfinite(value)), np.nan)
            self._findings.append(Finding(int(step), int(replica), str(value)))
        return np.True_

    def report(self) -> None:
        """Writes the findings to the log, if there are any and none has been reported; called after a step."""
        if self._findings and not self._reported:
            self._reported = True
            get_logger().warning("%s", describe(self._findings, worker=self._worker))


def _is_readable(loss: Any) -> bool:
    return tf.executing_eagerly() or getattr(loss, "graph", None) is tf.compat.v1.get_default_graph()


def _losses_in(logs: Any) -> list[tf.Tensor]:
    if not isinstance(logs, Mapping):
        return []
    named = [tf.convert_to_tensor(value) for name, value in logs.items() if "loss" in name and value is not None]
    return [value for value in named if value.dtype.is_floating and value.shape.rank == 0]


def watch_losses(model_class: Any, scaling_methods: Mapping[Any, str]) -> None:
    """Makes the losses that a step differentiates known to the `LossWatch` of the step.

    Args:
        model_class: class of models, whose fit begins a new watch.
        scaling_methods: for each class of optimizers that scale losses, the name of the method that scales.
    """
    tf.GradientTape.gradient = _noting_targets(tf.GradientTape.gradient)
    for owner, name in scaling_methods.items():
        setattr(owner, name, _noting_scale(getattr(owner, name)))
    model_class.fit = _beginning(model_class.fit)


def _noting_targets(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        losses = getattr(_local, "losses", None)
        if losses is not None and any(hasattr(source, "assign") for source in tf.nest.flatten(sources)):
            unscaled = {id(scaled): loss for scaled, loss in _local.scaled}
            tensors = [one for one in tf.nest.flatten(target) if tf.is_tensor(one) and one.dtype.is_floating]
            losses.extend(unscaled.get(id(one), one) for one in tensors)
        return stock(self, target, sources, *args, **kwargs)

    return gradient


def _noting_scale(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def scale(self: Any, loss: Any) -> Any:
        scaled = stock(self, loss)
        if getattr(_local, "scaled", None) is not None and tf.is_tensor(loss):
            _local.scaled.append((scaled, loss))
        return scaled

    return scale


def _beginning(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = getattr(getattr(self, "train_function", None), "begin", None)
        if begin is not None:
            begin()
        return stock(self, *args, **kwargs)

    return fit
