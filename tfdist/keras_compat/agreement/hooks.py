"""Makes the workers compare their trainings when fit begins, and each variable before its initial value is broadcast.

If workers train with other learning rates, TensorFlow trains without a word. If they make other variables or run other
steps, its messages name collective instances and data types, and some workers wait for ever. With the comparison, every
worker raises the same ValueError before the first step, which names the difference.

The values of the weights are compared in `fit` when the callbacks have begun, because a callback may restore them.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.deadline import deadline_of
from tfdist.keras_compat.agreement.describe import describe
from tfdist.keras_compat.agreement.differences import sentence, told_apart
from tfdist.keras_compat.agreement.rounds import Rounds
from tfdist.keras_compat.agreement.training import Training, disagreement, other_python_patches, tuple_text
from tfdist.keras_compat.agreement.weights import differences_of_weights, weights_of
from tfdist.keras_compat.mend import patch_method
from tfdist.keras_compat.version import keras, keras_in_use, trainer_class

_LEARNING_RATE = "learning_rate"
# Before a worker makes its first variable or evaluates, it may do other things that take long, such as a download.
_LONG_SECONDS = 1800.0
_TRAINS = ("fit", "train_on_batch")
_FUNCTIONS = {"train_on_batch": "train_function", "test_on_batch": "test_function"}
_patched: list[type] = []
# The models whose `fit` runs, the innermost last; None instead of a model whose weights have been compared.
_beginning: list[Any] = []
# The classes of the optimizers that are being made, the innermost last.
_optimizers: list[str] = []


def compare_workers(strategy: tf.distribute.Strategy) -> None:
    """Makes the workers of a strategy compare their trainings and their variables.

    Args:
        strategy: a strategy of several workers, which tfdist has made.
    """
    strategy._tfdist_rounds = Rounds.of(strategy)
    extended = strategy.extended
    extended._get_variable_creator_initial_value = _comparing_variables(
        strategy, extended._get_variable_creator_initial_value
    )
    if trainer_class() not in _patched:
        _patched.append(trainer_class())
        for name in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
            patch_method(trainer_class(), name, _comparing(name))
        patch_method(trainer_class(), "predict", _comparing_weights)
        patch_method(keras().callbacks.CallbackList, "on_train_begin", _comparing_weights_of_fit)
        # In Keras 3 the base class makes the variable of the learning rate, in Keras 2 each optimizer does.
        name = "__init__" if keras_in_use().is_keras3 else "_build_learning_rate"
        patch_method(tf.keras.optimizers.Optimizer, name, _remembering_the_optimizer)


def _remembering_the_optimizer(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _optimizers.append(type(self).__name__)
        try:
            return stock(self, *args, **kwargs)
        finally:
            _optimizers.pop()

    return method


def _comparing(call: str) -> Callable[[Callable], Callable]:
    def replace(stock: Callable) -> Callable:
        signature = inspect.signature(stock)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            rounds = getattr(self.distribute_strategy, "_tfdist_rounds", None)
            if rounds is not None and not _has_been_compared(self, call, kwargs):
                try:
                    bound = signature.bind(self, *args, **kwargs)
                except TypeError:
                    # Keras raises its own error.
                    return stock(self, *args, **kwargs)
                bound.apply_defaults()
                _compare(rounds, self, call, bound.arguments)
                if call != "fit":
                    _compare_weights(rounds, self, call, f"calls {call}")
            if rounds is None or call != "fit":
                return stock(self, *args, **kwargs)
            _beginning.append(self)
            try:
                return stock(self, *args, **kwargs)
            finally:
                _beginning.pop()

        return method

    return replace


def _comparing_weights(stock: Callable) -> Callable:
    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        rounds = getattr(self.distribute_strategy, "_tfdist_rounds", None)
        if rounds is not None:
            _compare_weights(rounds, self, "predict", "calls predict")
        return stock(self, *args, **kwargs)

    return predict


def _comparing_weights_of_fit(stock: Callable) -> Callable:
    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        # A loop of one's own may have a list of callbacks on the chief only.
        model = getattr(self, "_model", None) or getattr(self, "model", None)
        if model is not None and _beginning and _beginning[-1] is model:
            _beginning[-1] = None
            _compare_weights(model.distribute_strategy._tfdist_rounds, model, "fit", "begins fit")
        return result

    return on_train_begin


def _has_been_compared(model: Any, call: str, kwargs: dict[str, Any]) -> bool:
    """Returns whether a call belongs to a training that the workers have compared already."""
    if call in _FUNCTIONS:
        # A program calls train_on_batch for every step. The function is made in the first call after `compile`.
        return getattr(model, _FUNCTIONS[call], None) is not None
    # `fit` evaluates its validation data itself.
    return bool(kwargs.get("_use_cached_eval_dataset"))


def _compare(rounds: Rounds, model: Any, call: str, arguments: dict[str, Any]) -> None:
    _compare_texts(rounds, model, call, describe(model, call, arguments).to_json())


def _compare_weights(rounds: Rounds, model: Any, call: str, does: str) -> None:
    try:
        weights = weights_of(model)
    except Exception:
        # A model may have variables or layers of its own kinds.
        weights = []
    _compare_texts(rounds, model, call, json.dumps({"call": does, "weights": weights}))


def _compare_texts(rounds: Rounds, model: Any, call: str, text: str) -> None:
    rounds.compare(
        key=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
        explain=_explain,
        to=f"call {call}",
        timeout_seconds=_timeout_of(model.distribute_strategy, trains=call in _TRAINS),
    )


def _timeout_of(strategy: tf.distribute.Strategy, *, trains: bool) -> float:
    """Returns how long a worker waits for the others. A short deadline for sums holds only for calls that train."""
    deadline = deadline_of(strategy)
    of_sums = _LONG_SECONDS if deadline is None else deadline.timeout_seconds
    return of_sums if trains else max(of_sums, _LONG_SECONDS)


def _explain(workers: Sequence[str], texts: Sequence[str]) -> str:
    read = [json.loads(text) for text in texts]
    calls = [one["call"] for one in read]
    if len(set(calls)) == 1 and all("weights" in one for one in read):
        return differences_of_weights(workers, [one["weights"] for one in read])
    if len(set(calls)) > 1 or "versions" not in read[0]:
        return sentence([told_apart(workers, calls)])
    trainings = [Training.from_json(text) for text in texts]
    patches = other_python_patches(workers, trainings)
    if patches:
        get_logger().warning("expected the same Python on all workers, received: %s", patches)
    return disagreement(workers, trainings)


def _comparing_variables(strategy: tf.distribute.Strategy, stock: Callable) -> Callable:
    def creator(replica_id: int, device: str | None, primary_var: Any, **kwargs: Any) -> Any:
        if replica_id != 0 or not tf.executing_eagerly():
            return stock(replica_id, device, primary_var, **kwargs)

        def initial_value() -> Any:
            if not tf.executing_eagerly():
                return stock(replica_id, device, primary_var, **kwargs)()
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
            _compare_variable(strategy, value, kwargs)
            return stock(replica_id, device, primary_var, **{**kwargs, "initial_value": value})()

        return initial_value

    return creator


def _compare_variable(strategy: tf.distribute.Strategy, value: Any, kwargs: dict[str, Any]) -> None:
    # A checkpoint that is restored when the variable is made wraps its value.
    tensor = tf.convert_to_tensor(getattr(value, "wrapped_value", value))
    dtype = tf.as_dtype(kwargs.get("dtype") or tensor.dtype).name
    shape = tuple_text(tf.TensorShape(tensor.shape).as_list())
    name = kwargs.get("name") or "Variable"
    key, text = f"variable {shape} {dtype}", f"makes the variable {name} {shape} {dtype}"
    if name == _LEARNING_RATE and _optimizers and shape == "()":
        # The value of worker 0 replaces the values of the other workers, so that `fit` could not compare them.
        key = text = f"has {_optimizers[-1]}(learning_rate={float(tensor):.7g})"
    strategy._tfdist_rounds.compare(
        key=key,
        text=json.dumps({"call": text}),
        explain=_explain,
        to=f"make a variable of shape {shape}",
        timeout_seconds=_timeout_of(strategy, trains=False),
    )
