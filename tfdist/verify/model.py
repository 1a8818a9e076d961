"""verify: compares the training of a model on several replicas and workers with one device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tfdist._sending import to_bytes
from tfdist.verify.data import first_rows
from tfdist.verify.report import print_report
from tfdist.verify.runner import scratch_folder
from tfdist.verify.values import PREFIX, topologies
from tfdist.verify.verification import Verification, Verifier


def verify(
    model_fn: Callable[[], Any],
    data: Any,
    *,
    global_batch_size: int | None = None,
    steps: int = 5,
    replicas: Sequence[int] = (2, 4),
    workers: int = 2,
    timeout_seconds: float = 600.0,
    verbose: bool = True,
) -> Verification:
    """Compares the first training steps of a model on several replicas and workers with those on one device.

    Each topology runs in new processes on the CPUs of this machine, in float64 with the same initial weights and the
    same global batches. Losses, metrics, all weights and the result of `evaluate` are compared. If they differ, further
    runs find the likely cause. `tfdist verify -- python train.py` does the same for a whole program.

    Args:
        model_fn: makes and returns a compiled Keras model; called in the scope of each strategy. It is pickled with
            cloudpickle, so that it can be defined in a script or a notebook.
        data: arrays as in `fit`: x, (x, y) or (x, y, sample_weight), where each of them may be a tuple or dict of
            arrays, all of shape (rows, ...); or a function without arguments that returns a tf.data.Dataset of global
            batches.
        global_batch_size: rows of a global batch of the arrays; None is 32. A function returns batches, and does not
            take this option.
        steps: number of training steps to compare.
        replicas: numbers of replicas of one process.
        workers: number of worker processes; 0 for none.
        timeout_seconds: time limit of each run.
        verbose: whether to print what is running on stderr, and the result on stdout.

    Returns:
        The result, which is true if all topologies are equal to one device, so that a test can assert it.

    Raises:
        ValueError: for a wrong option, for data that are not arrays, if a function cannot be pickled, and if model_fn
            does not return a compiled model.
        RuntimeError: if the model cannot be trained on one device.

    Example:
        >>> import numpy as np
        >>> import tfdist
        >>> def make_model():
        ...     import tensorflow as tf
        ...     model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        ...     model.compile(optimizer="sgd", loss="mse")
        ...     return model
        >>> x = np.random.default_rng(0).normal(size=(20, 4))
        >>> report = tfdist.verify(
        ...     make_model, (x, x.sum(axis=1)), global_batch_size=8, replicas=[2], workers=0, verbose=False
        ... )
        >>> report.is_equal, report.steps, report.floatx
        (True, 5, 'float64')
    """
    others = topologies(replicas=tuple(replicas), workers=workers)
    if steps < 1:
        raise ValueError(f"expected steps to be at least 1, received {steps}.")
    if not timeout_seconds > 0:
        raise ValueError(f"expected timeout_seconds above 0, received {timeout_seconds}.")
    if hasattr(model_fn, "fit") or not callable(model_fn):
        raise ValueError(
            f"expected model_fn to be a function that returns a compiled model, received {_kind(model_fn)}; make and "
            "compile the model in a function."
        )
    if callable(data):
        if global_batch_size is not None:
            raise ValueError(
                f"expected no global_batch_size with a function that returns batches, received {global_batch_size}; "
                "batch the dataset in the function."
            )
    else:
        size = 32 if global_batch_size is None else global_batch_size
        if size < 1:
            raise ValueError(f"expected global_batch_size to be at least 1, received {size}.")
        data, global_batch_size = first_rows(data, size * steps), size
    training = _pickled((model_fn, data, global_batch_size, steps))
    folder = scratch_folder()
    file = folder / "training.pickle"
    file.write_bytes(training)
    verifier = Verifier(
        ("-m", "tfdist.verify.training", str(file)),
        steps=steps,
        timeout_seconds=timeout_seconds,
        say=(lambda line: print(f"{PREFIX} {line}", file=sys.stderr)) if verbose else (lambda line: None),
        folder=folder,
    )
    result = verifier.verify(others)
    if result.error:
        if result.error.startswith(PREFIX):
            raise ValueError(result.error.removeprefix(PREFIX).strip())
        raise RuntimeError(f"the model cannot be trained on one device: {result.error}")
    if verbose:
        print_report(result)
    return result


def _pickled(training: tuple[Any, ...]) -> bytes:
    try:
        return to_bytes(training)
    except Exception as error:
        raise ValueError(
            f"expected model_fn and data to be picklable, received an object that is not ({error}); make models, "
            "datasets and strategies in the functions."
        ) from error


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"
