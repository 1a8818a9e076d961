"""Mends fit without steps_per_epoch on data that repeats without end, which fails or never ends.

With the mend, `fit` uses the attribute `steps_per_epoch` of a dataset. The datasets of tfdist.input have this
attribute. Before training, `fit` refuses endless data without the attribute. The next fit on a dataset of tfdist.input
begins at the epoch of its order that follows.

Source: Keras 3 trains for ever, and Keras 2 refuses all endless datasets. No upstream issue is known.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import keras_in_use, trainer_class

_STEPS = "steps_per_epoch"


def _defect_present() -> bool:
    if keras_in_use().is_keras3:
        from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

        return "steps_per_epoch" not in inspect.getsource(TFDatasetAdapter.num_batches.fget)
    return True


def _apply() -> None:
    patch_method(trainer_class(), "fit", _with_steps)


def _with_steps(stock: Callable) -> Callable:
    signature = inspect.signature(stock)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs).arguments
        data = bound.get("x")
        if bound.get(_STEPS) is None and _is_endless(data):
            steps = getattr(data, _STEPS, None)
            if steps is None:
                raise ValueError(
                    "expected steps_per_epoch for data that repeats without end, received None; pass it to fit."
                )
            bound[_STEPS] = steps
        with _one_iteration(self, data, bound.get(_STEPS)):
            return stock(**bound)

    return fit


def _one_iteration(model: Any, data: Any, steps_per_epoch: int | None) -> contextlib.AbstractContextManager[None]:
    """Returns the context of a fit, in which Keras may make several iterators of a dataset of tfdist.input."""
    iterations = getattr(data, "iterations", None)
    if iterations is None:
        return contextlib.nullcontext()
    former = getattr(getattr(model, "history", None), "epoch", None)

    def steps_read() -> int:
        epochs = getattr(getattr(model, "history", None), "epoch", None)
        # Each fit makes a new list.
        return 0 if epochs is None or epochs is former else len(epochs) * (steps_per_epoch or 0)

    return iterations.one_for(steps_read)


def _is_endless(data: Any) -> bool:
    """Returns whether a dataset is known to repeat without end."""
    if hasattr(data, "repeats"):
        return bool(data.repeats)
    if not isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)) or not tf.executing_eagerly():
        return False
    try:
        # `cardinality` is a method of datasets, but an attribute of distributed datasets.
        found = data.cardinality() if callable(data.cardinality) else data.cardinality
    except ValueError:
        # On parameter servers, the workers have not built the dataset yet.
        return False
    return int(found) == tf.data.INFINITE_CARDINALITY


MEND = Mend(
    name="endless_data_without_steps",
    issue="not reported",
    strategies=("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`fit` without `steps_per_epoch` on data that repeats without end: Keras 3 never ends the epoch, Keras 2 "
    "refuses the data",
    rows=("data that repeats without end, no steps_per_epoch",),
)
