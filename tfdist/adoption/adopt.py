"""adopt: from now on, the constructors of tf.distribute prepare their strategies as create_strategy does."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import wrapt

from tfdist.adoption.options import AdoptionOptions

_in_force: list[AdoptionOptions] = []


def adopt(*, loss: str = "auto", sync_batch_norm: bool = False, startup_timeout_seconds: float = 300.0) -> None:
    """Prepares every strategy that the program makes with a constructor of tf.distribute, as create_strategy does.

    Call this function before the program makes its strategy. It does not import TensorFlow: if TensorFlow has not been
    imported, its constructors are changed as soon as the program imports it. A line of the log says what was adopted.
    A second call changes the options for the strategies that are made after it.

    Args:
        loss: how the losses of replicas make up that of the global batch, as in create_strategy.
        sync_batch_norm: whether BatchNormalization layers normalize with the global batch, as in create_strategy.
        startup_timeout_seconds: how long a strategy of several processes waits for the other tasks.

    Raises:
        ValueError: for an option that is out of its range.
        RuntimeError: if the program has made a strategy already.

    Example:
        >>> import tfdist
        >>> tfdist.adopt(loss="sum")
        Traceback (most recent call last):
        ...
        ValueError: expected loss to be one of auto, replica_mean, global_sum, received 'sum'.
    """
    options = AdoptionOptions(
        loss=loss, sync_batch_norm=sync_batch_norm, startup_timeout_seconds=startup_timeout_seconds
    )
    if "tensorflow" in sys.modules:
        importlib.import_module("tfdist.adoption.earlier").refuse_earlier_strategies()
    first = not _in_force
    _in_force[:] = [options]
    if first:
        wrapt.register_post_import_hook(_change_constructors, "tensorflow")


def options_in_force() -> AdoptionOptions:
    """Returns the options of the last call of `adopt`."""
    return _in_force[0]


def _change_constructors(tensorflow: Any) -> None:
    importlib.import_module("tfdist.adoption.constructors").change_constructors()
