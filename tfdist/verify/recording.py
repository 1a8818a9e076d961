"""Records the first steps of a program's `fit`, and then ends the program."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.version import keras, trainer_class
from tfdist.verify.layers import mixing_layers, noisy_layers, remove_noise, replica_normalizations
from tfdist.verify.own_files import without_files
from tfdist.verify.random_numbers import RandomNumbers
from tfdist.verify.values import Record, Run

_OF_VALIDATION = ("validation_data", "validation_steps", "validation_batch_size", "validation_freq")


class Verified(BaseException):
    """Ends the program after its first steps; no `except Exception` of the program catches it."""


class _Enough(BaseException):
    """Ends `fit` after the last recorded step."""


class Recorder:
    """Replaces `fit` of all models by one that records.

    Args:
        run: the run that this process belongs to.
        replayed: batches to train on instead of the program's own data; None for the program's own data.

    Attributes:
        record: what has been recorded so far.
        batches: the data of each step, structures of arrays, on one device.
        is_driven: whether Keras drives the steps, in `fit` or `train_on_batch`.
    """

    def __init__(self, run: Run, replayed: list[Any] | None = None) -> None:
        self.record = Record()
        self.batches: list[Any] = []
        self.is_driven = False
        self._run, self._replayed = run, replayed
        self._lock = threading.Lock()
        self._random = RandomNumbers(self.record.drawing)
        self._steps_of_replica: dict[int, int] = {}
        self._first_batches: dict[int, int] = {}
        logging.getLogger("tfdist").addHandler(_Lines(self.record.lines))

    def install(self) -> None:
        """Patches `fit` and the functions that draw random numbers; call it before the program runs."""
        self._random.install()
        trainer = trainer_class()
        trainer.fit = self._recording(trainer.fit)

    def _recording(self, stock: Callable) -> Callable:
        signature = inspect.signature(stock)
        recorder = self

        @functools.wraps(stock)
        def fit(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            model = given.pop("self")
            if recorder._replayed is not None:
                given = {name: given[name] for name in ("epochs", "callbacks", *_OF_VALIDATION) if name in given}
                given["x"] = recorder._dataset()
            recorder.begin(model)
            callbacks = [*without_files(given.pop("callbacks", None)), _StepRecorder(recorder)]
            recorder._shorten_validation(given)
            with contextlib.suppress(_Enough):
                stock(model, **{**given, "callbacks": callbacks, "verbose": 0})
            recorder._evaluate(model, given)
            recorder.look_at(model)
            raise Verified

        return fit

    def _shorten_validation(self, given: dict[str, Any]) -> None:
        """Lets `fit` validate with few batches. The result is only for callbacks that read it."""
        if given.get("validation_data") is not None:
            given["validation_steps"] = min(self._run.steps, given.get("validation_steps") or self._run.steps)

    def _dataset(self) -> Any:
        """Returns the replayed batches as a tf.data.Dataset."""
        assert self._replayed is not None
        first = self._replayed[0]
        signature = tf.nest.map_structure(
            lambda array: tf.TensorSpec((None, *array.shape[1:]), tf.as_dtype(array.dtype)), first
        )
        return tf.data.Dataset.from_generator(lambda: iter(self._replayed or []), output_signature=signature)

    def begin(self, model: Any, *, number: int = 1) -> None:
        """Changes a model for the experiment and records its settings; call it before its first step.

        Args:
            model: the model.
            number: number of the model in a program that trains several models, from 1.
        """
        if not self.is_driven:
            # Rows that the program has evaluated before are no training steps.
            self.record.rows.clear()
            self._steps_of_replica.clear()
        self.is_driven = True
        if self._run.experiment.removes_noise:
            remove_noise(model)
        self.begin_weights(model)
        config = config_of(model)
        self.record.config |= (
            {f"{name} of model {number}": value for name, value in config.items()} if number > 1 else config
        )
        self._first_batches[id(model)] = len(self.batches)
        stock = self._watching(model.train_step)

        @functools.wraps(stock)
        def train_step(data: Any) -> Any:
            self.note(data)
            return stock(data)

        # object.__setattr__, because the model's own __setattr__ would track the function.
        object.__setattr__(model, "train_step", train_step)
        object.__setattr__(model, "test_step", self._watching(model.test_step))

    def _watching(self, step: Callable) -> Callable:
        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.watched():
                return step(*args, **kwargs)

        return watched

    def begin_weights(self, model: Any) -> None:
        """Records the initial weights and then perturbs them, unless the model has none yet or this has been done."""
        new = {name: value for name, value in weights_of(model).items() if name not in self.record.initial}
        self.record.initial |= new
        if self._run.perturbation and new:
            rng = np.random.default_rng(self._run.perturbation_seed)
            model.set_weights(
                [
                    value * (1 + self._run.perturbation * rng.choice([-1, 1], size=np.shape(value)))
                    if np.asarray(value).dtype.kind == "f"
                    else value
                    for value in model.get_weights()
                ]
            )

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Returns the context of a step, in which random numbers are noted and removed as the experiment says."""
        return self._random.of_step(removes=self._run.experiment.removes_noise)

    def note(self, data: Any, *, keeps: bool = True) -> None:
        """Adds the rows of a replica to the record, when the step runs.

        Args:
            data: a structure of tensors, in replica context.
            keeps: whether one device keeps the batch, so that other runs can replay it.
        """
        replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) or 0)
        # The structure keeps None, such as missing sample weights.
        leaves = [value for value in tf.nest.flatten(data) if value is not None]

        def store(*arrays: np.ndarray) -> None:
            with self._lock:
                step = self._steps_of_replica.get(replica, 0)
                self._steps_of_replica[replica] = step + 1
                while len(self.record.rows) <= step:
                    self.record.rows.append([])
                self.record.rows[step].append(fingerprints(arrays))
                if keeps and self._run.topology.strategy == "one_device":
                    values = iter(arrays)
                    self.batches.append(
                        tf.nest.map_structure(lambda value: None if value is None else next(values), data)
                    )

        tensors = [value.to_tensor() if isinstance(value, tf.RaggedTensor) else value for value in leaves]
        tensors = [tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value for value in tensors]
        tf.numpy_function(store, tensors, [])

    def _evaluate(self, model: Any, given: dict[str, Any]) -> None:
        data = {name: given[name] for name in ("x", "y", "batch_size", "sample_weight") if name in given}
        if inspect.isgenerator(data.get("x")) or isinstance(data.get("x"), tf.data.Iterator):
            return
        # A program that does not call `evaluate` may have a model without a loss or a test_step.
        with contextlib.suppress(Exception):
            logs = model.evaluate(**data, steps=self._run.steps, verbose=0, return_dict=True)
            self.record.evaluated = numbers_in(logs)

    def look_at(self, model: Any) -> None:
        """Records the layers of a model that can be the cause of a difference; call it after its last step."""
        self.record.batch_normalizations += replica_normalizations(model)
        self.record.noisy += noisy_layers(model)
        first = self._first_batches[id(model)]
        if first < len(self.batches):
            with self._random.of_step(removes=True):
                self.record.mixing += mixing_layers(model, self.batches[first])

    def add_step(self, model: Any, logs: dict[str, Any]) -> None:
        """Records the weights and logs after a step.

        Args:
            model: the model.
            logs: losses and metrics so far.
        """
        self.add_values(weights_of(model), numbers_in(logs))

    def add_values(self, weights: dict[str, np.ndarray], logs: dict[str, float]) -> None:
        """Records the weights after a step, and its losses and metrics."""
        self.record.weights.append(weights)
        self.record.logs.append(logs)

    def has_enough(self) -> bool:
        """Returns whether all steps of `fit` have been recorded."""
        return len(self.record.logs) >= self._run.steps


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


class _StepRecorder(keras().callbacks.Callback):  # type: ignore[misc]
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def on_train_begin(self, logs: Any = None) -> None:
        # Some models are built by `fit`.
        self._recorder.begin_weights(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._recorder.add_step(self.model, logs or {})
        if self._recorder.has_enough():
            raise _Enough


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """Returns the weights of a model by name; names that occur twice get a number."""
    found: dict[str, np.ndarray] = {}
    # Keras 2 lists the variables of metrics among the weights. Replicas may count other numbers in them for the same
    # result, which is part of the logs.
    counters = {id(variable) for metric in model.metrics for variable in metric.variables}
    weights: list[Any] = []
    with contextlib.suppress(ValueError):
        # A Sequential that has not been called may raise.
        weights = model.weights
    for weight, value in zip(weights, model.get_weights() if weights else [], strict=True):
        if id(weight) in counters:
            continue
        name = getattr(weight, "path", None) or weight.name
        while name in found:
            name += "_"
        found[name] = np.array(value)
    return found


def numbers_in(logs: Any) -> dict[str, float]:
    """Returns the logs that are numbers."""
    return {name: float(value) for name, value in dict(logs).items() if np.ndim(value) == 0}


def config_of(model: Any) -> dict[str, Any]:
    """Returns the settings of a compiled model that have to be the same everywhere, as text."""
    optimizer = getattr(model, "optimizer", None)
    try:
        config = optimizer.get_config() if optimizer is not None else {}
    except NotImplementedError:
        # A learning rate schedule of the program need not have one to train.
        config = {}
    found = {f"optimizer {name}": repr(value) for name, value in config.items()}
    found["optimizer"] = type(optimizer).__name__
    return found


def fingerprints(arrays: tuple[np.ndarray, ...]) -> list[str]:
    """Returns a text for each row that is equal for equal rows.

    Args:
        arrays: arrays with the same first axis; others are left out.
    """
    rows = len(arrays[0]) if arrays and np.ndim(arrays[0]) else 0
    columns = [array.astype(_plain(array)) for array in arrays if np.ndim(array) and len(array) == rows]
    texts = (b"".join(np.ascontiguousarray(column[i]).tobytes() for column in columns) for i in range(rows))
    return [hashlib.blake2b(text, digest_size=8).hexdigest() for text in texts]


def _plain(array: np.ndarray) -> Any:
    # Texts come as objects, whose bytes are addresses.
    return "S" if array.dtype.kind == "O" else array.dtype
