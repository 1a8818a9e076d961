"""Compares the values of a model's weights, of which every worker holds a copy.

A program that loads weights on the chief alone, as programs of Horovod do before a broadcast, would train another model
on each worker without a word: the workers apply the same gradients to other weights.

Each variable becomes a few sums of its values with random signs, so that nothing large is copied or sent. The sums of
the difference of two variables are about as large as this difference, so that roundings can be told from other values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import MirroredVariable

from tfdist._log import get_logger
from tfdist.keras_compat.agreement.differences import sentence, told_apart
from tfdist.keras_compat.agreement.training import tuple_text, without_numbers
from tfdist.keras_compat.optimizers.base import held_variable
from tfdist.keras_compat.optimizers.hooked import hooks_that_train

_SUMS = 8
# Values that are read at once: enough for a fast sum, few enough for a copy that costs nothing. A multiple of _SUMS.
_PIECE = 1 << 20
# Hosts with other processors round updates in other ways, and after many steps have weights that differ a little. They
# are not brought together again: the largest difference, relative to the values, that may come from it, by dtype.
_ROUNDING = {"bfloat16": 0.1, "float16": 0.02, "float32": 1e-3, "float64": 1e-3}
# For variables whose values happen to be close to 0.
_CLOSE_TO_ZERO = 1e-6
_LARGEST = 1e30


def weights_of(model: Any) -> list[list[Any]]:
    """Returns name, whether it is trained, dtype, count, sums of values, and number of NaN, of each variable compared.

    These are the variables that were made to be trained, also if they are frozen, and those of layers with `adapt`.
    Other state may belong to a worker, such as moving statistics and seeds. Nothing is compared of a model that has no
    variables yet, or whose replicas hold values of their own, as with LocalSGD.

    Args:
        model: a Keras model.
    """
    if not all(layer.built for layer in model._flatten_layers()):
        return []
    if any(hook.lets_replicas_differ and hook.trained for hook in hooks_that_train(model)):
        return []
    adapted = {id(one) for layer in model._flatten_layers() if hasattr(layer, "adapt") for one in layer.weights}
    found = []
    for variable in model.weights:
        held = held_variable(variable)
        # The variables of one replica that a program makes outside of the strategy's scope belong to the worker.
        if not isinstance(held, MirroredVariable) or tf.as_dtype(held.dtype).name not in _ROUNDING:
            continue
        if held.trainable or id(variable) in adapted:
            name = f"{without_numbers(getattr(variable, 'path', variable.name))} {tuple_text(variable.shape)}"
            found.append((name, id(variable) not in adapted, held.values[0]))
    sums = sums_of([one for *_, one in found])
    return [
        [name, trained, tf.as_dtype(one.dtype).name, int(np.prod(one.shape)), *numbers]
        for (name, trained, one), numbers in zip(found, sums, strict=True)
    ]


def sums_of(variables: Sequence[tf.Variable]) -> list[tuple[list[float], int]]:
    """Returns for each variable sums of its values with random signs, and the number of values that are not finite.

    Args:
        variables: variables of floating-point numbers, on one device each.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.keras_compat.agreement.weights import sums_of
        >>> first, second = sums_of([tf.Variable([1.0, 2.0, float("nan")]), tf.Variable([1.0, 2.0, 4.0])])
        >>> [abs(number) for number in first[0][:3]], first[1], second[1]
        ([1.0, 2.0, 0.0], 1, 0)
    """
    signs: dict[str, tf.Tensor] = {}
    pieces, counts = [], []
    for variable in variables:
        with tf.device(variable.device):
            if variable.device not in signs:
                signs[variable.device] = tf.constant(_signs(), tf.float32)
            found = _sums_of_pieces(variable, signs[variable.device])
        pieces += found
        counts.append(len(found))
    # One copy from the device.
    rows = iter(tf.stack(pieces).numpy().astype("float64") if pieces else ())
    sums = [sum((next(rows) for _ in range(count)), np.zeros(_SUMS)) for count in counts]
    return [
        (total.tolist(), 0) if np.isfinite(total).all() else _sums_of_finite(variable)
        for variable, total in zip(variables, sums, strict=True)
    ]


def differences_of_weights(workers: Sequence[str], found: Sequence[Sequence[Sequence[Any]]]) -> str:
    """Returns the message about variables that were loaded or set on some workers only, or an empty text.

    Variables of layers that workers have adapted to other data are a line of the log.

    Args:
        workers: names of the workers.
        found: what `weights_of` has returned on each worker.
    """
    keys = [[[name, trained, *rest[:2]] for name, trained, *rest in one] for one in found]
    if any(key != keys[0] for key in keys):
        # The model is built on some workers only; the shapes of variables are compared elsewhere.
        return ""
    differing = [
        (entries[0], [worker for worker, one in zip(workers, entries, strict=True) if not _are_alike(entries[0], one)])
        for entries in zip(*found, strict=True)
    ]
    trained = [(entry[0], others) for entry, others in differing if others and entry[1]]
    adapted = [(entry[0], others) for entry, others in differing if others and not entry[1]]
    if adapted:
        name, others = adapted[0]
        get_logger().warning(
            "expected the same adapted layers on all workers, received: %s; call adapt with the same data on all "
            "workers",
            _with_other_values(others, name, len(adapted), workers[0]),
        )
    if not trained:
        return ""
    name, others = trained[0]
    text = _with_other_values(others, name, len(trained), workers[0])
    return sentence([f"{text}; load or set the weights on every worker, not only on one"])


def _with_other_values(workers: Sequence[str], name: str, count: int, first: str) -> str:
    more = f" and of {count - 1} more variable{'s' * (count > 2)}" if count > 1 else ""
    return told_apart(workers, [f"has other values of the variable {name}{more} than {first}"] * len(workers))


def _are_alike(first: Sequence[Any], second: Sequence[Any]) -> bool:
    _, _, dtype, count, sums, unfinite = first
    _, _, _, _, others, others_unfinite = second
    if unfinite != others_unfinite:
        return False
    size = max(math.hypot(*sums), math.hypot(*others))
    return math.dist(sums, others) <= _ROUNDING[dtype] * size + _CLOSE_TO_ZERO * math.sqrt(count)


def _signs() -> np.ndarray:
    # The numbers of RandomState, unlike those of a Generator, are the same in every version of NumPy.
    return 2.0 * np.random.RandomState(0).randint(0, 2, size=_PIECE) - 1.0


def _sums_of_pieces(variable: tf.Variable, signs: tf.Tensor) -> list[tf.Tensor]:
    return [_with_signs(tf.cast(piece, tf.float32), signs) for piece in _pieces(variable)]


def _sums_of_finite(variable: tf.Variable) -> tuple[list[float], int]:
    """Returns what `sums_of` returns, of values that are NaN or whose sum float32 cannot hold."""
    total, unfinite = np.zeros(_SUMS), 0
    with tf.device(variable.device):
        signs = tf.constant(_signs(), tf.float64)
        for piece in _pieces(variable):
            values = tf.cast(piece, tf.float64)
            is_finite = tf.math.is_finite(values)
            values = tf.where(is_finite, tf.clip_by_value(values, -_LARGEST, _LARGEST), 0)
            total += _with_signs(values, signs).numpy()
            unfinite += int(tf.math.count_nonzero(~is_finite))
    return total.tolist(), unfinite


def _pieces(variable: tf.Variable) -> list[tf.Tensor]:
    flat = tf.reshape(variable.read_value(), [-1])
    return [flat[begin : begin + _PIECE] for begin in range(0, int(flat.shape[0]), _PIECE)]


def _with_signs(values: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    count = int(values.shape[0])
    signed = values * signs[:count]
    if count % _SUMS:
        signed = tf.pad(signed, [[0, -count % _SUMS]])
    return tf.reduce_sum(tf.reshape(signed, [_SUMS, -1]), axis=1)
