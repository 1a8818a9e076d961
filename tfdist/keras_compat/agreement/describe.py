"""Describes what a worker is about to train: model, optimizer, loss, arguments and data, as plain values.

Describing must not fail: if a part cannot be described, such as the configuration of a layer without get_config, the
part is left out on every worker, because every worker runs the same program.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._version import __version__
from tfdist.allreduce.options_of import all_reduce_of
from tfdist.keras_compat.agreement.callbacks import changing_callbacks
from tfdist.keras_compat.agreement.training import Training, without_numbers
from tfdist.keras_compat.data.symbolic_build_averages_data import batch_spec
from tfdist.keras_compat.losses.rule import loss_rule_of
from tfdist.keras_compat.version import keras_in_use

# Names depend on how many layers a process has made. Seeds may be drawn at random when a layer is made.
_NOT_COMPARED = {"name", "seed", "registered_name", "build_config"}
_LONGEST_ARRAY = 8
_ARGUMENTS = (
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "steps",
    "shuffle",
    "class_weight",
    "validation_split",
    "validation_steps",
    "validation_freq",
    "validation_batch_size",
)


def describe(model: Any, call: str, arguments: Mapping[str, Any]) -> Training:
    """Returns the training that this worker is about to begin.

    Args:
        model: a compiled Keras model.
        call: name of the method, such as "fit".
        arguments: arguments of the method, with their defaults.
    """
    variables = _or_none(lambda: _variables(model))
    data = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    return Training(
        call=f"calls {call}",
        variables=variables,
        layers=_or_none(lambda: _layers(model)) if variables is None else None,
        optimizers=_or_none(lambda: _optimizers(model)) or {},
        compiled=_or_none(lambda: _compiled(model)) or {},
        numbers=_numbers(model, call, arguments),
        data=_or_none(lambda: _data(data)),
        callbacks=_or_none(lambda: changing_callbacks(model, call, arguments)),
        versions={
            "Python": platform.python_version(),
            "TensorFlow": tf.__version__,
            {"keras3": "Keras", "keras2": "Keras"}.get(keras_in_use().name, "tf_keras"): keras_in_use().version,
            "tfdist": __version__,
        },
    )


def _or_none(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception:
        # User code, such as get_config, may raise any error; the call that follows shows its own.
        return None


def _variables(model: Any) -> list[list[str]] | None:
    if not all(layer.built for layer in model._flatten_layers()):
        return None
    trainable = {id(variable) for variable in model.trainable_variables}
    return [
        [
            without_numbers(getattr(variable, "path", variable.name)),
            str(tuple(variable.shape)),
            tf.as_dtype(variable.dtype).name,
            "" if id(variable) in trainable else "not trainable",
        ]
        for variable in model.weights
    ]


def _layers(model: Any) -> list[Any]:
    # The layers of an inner model are in the list themselves.
    return [plain(one) for one in model._flatten_layers(include_self=False) if not isinstance(one, tf.keras.Model)]


def _optimizers(model: Any) -> dict[str, Any]:
    own = {"optimizer": getattr(model, "optimizer", None), **vars(model)}
    found: dict[int, tuple[str, Any]] = {}
    for name, value in own.items():
        if hasattr(value, "apply_gradients") and hasattr(value, "get_config"):
            found.setdefault(id(value), (name, value))
    return {name: plain(value) for name, value in found.values()}


def _compiled(model: Any) -> dict[str, Any]:
    arguments = getattr(getattr(model, "_compile_config", None), "config", {})
    losses = {name: value for name, value in vars(model).items() if isinstance(value, tf.keras.losses.Loss)}
    return {name: plain(value) for name, value in {**losses, **arguments}.items() if name != "optimizer"}


def _numbers(model: Any, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from tensorflow.python.eager import context

    numbers = {name: plain(arguments[name]) for name in _ARGUMENTS if name in arguments}
    batch_size = _or_none(lambda: _global_batch_size(call, arguments))
    for name in ("steps_per_epoch", "steps"):
        if name in numbers and numbers[name] is None:
            numbers[name] = _or_none(lambda: _steps_of(arguments.get("x"), batch_size))
    if "validation_data" in arguments:
        numbers["validation_data"] = "none" if arguments["validation_data"] is None else "given"
    numbers["seed"] = plain(context.global_seed())
    strategy = model.distribute_strategy
    numbers["loss_rule"] = loss_rule_of(strategy)
    options = all_reduce_of(strategy)
    numbers["all_reduce"] = {name: plain(getattr(options, name)) for name in ("algorithm", "num_packs", "compression")}
    # A batch size that one worker cannot know, such as that of a generator, is not compared.
    return numbers if batch_size is None else {**numbers, "global_batch_size": batch_size}


def _steps_of(x: Any, batch_size: int | None) -> int | None:
    """Returns the number of steps that Keras counts in the data of this worker, if it counts them before it reads."""
    # The data of tfdist.input.distribute_files has this attribute.
    steps = getattr(x, "steps_per_epoch", None)
    if steps is not None:
        return int(steps)
    if isinstance(x, tf.data.Dataset):
        found = int(x.cardinality())
        return None if found < 0 else found
    if batch_size is not None and _is_arrays(x):
        return -(-len(tf.nest.flatten(x)[0]) // batch_size)
    return None


def _is_arrays(x: Any) -> bool:
    return all(isinstance(value, (np.ndarray, tf.Tensor)) for value in tf.nest.flatten(x))


def _global_batch_size(call: str, arguments: Mapping[str, Any]) -> int | None:
    x = arguments.get("x")
    if call.endswith("on_batch"):
        return int(tf.nest.flatten(x)[0].shape[0])
    if isinstance(x, tf.distribute.DistributedDataset):
        # A dataset that distribute_datasets_from_function has made has no original, and batches of its own.
        x = getattr(x, "_original_dataset", None)
    if isinstance(x, tf.data.Dataset):
        from tensorflow.python.data.experimental.ops.distribute import compute_batch_size

        policy = x.options().experimental_distribute.auto_shard_policy
        if policy == tf.data.experimental.AutoShardPolicy.OFF:
            return None
        size = int(compute_batch_size(x))
        return None if size < 1 else size
    if _is_arrays(x):
        # 32 is Keras's default.
        return arguments.get("batch_size") or 32
    return None


def _data(data: list[Any]) -> list[Any] | None:
    from tensorflow.python.util import nest

    x = data[0]
    spec = batch_spec(x) if hasattr(x, "element_spec") else tuple(value for value in data if value is not None)
    entries = []
    for path, value in nest.flatten_with_joined_string_paths(spec):
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            return None
        shape = tf.TensorShape(value.shape)
        dtype = tf.as_dtype(value.dtype).name
        sizes = None if shape.rank is None else shape.as_list()[1:]
        entries.append([path, _kind(value), dtype, sizes])
    return entries


def _kind(value: Any) -> str:
    for kind in ("Ragged", "Sparse"):
        if type(value).__name__.startswith(kind):
            return kind.lower()
    return "dense"


def plain(value: Any) -> Any:
    """Returns a configuration as a value that JSON can hold. Objects become dicts with the key "class".

    Args:
        value: an argument of Keras's `compile` or `fit`, or a configuration.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return _plain_dict(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "get_config") and not isinstance(value, type):
        config = _or_none(value.get_config)
        # Keras 3's configuration of a loss or a metric may leave out the arguments of its function.
        config = {**(config if isinstance(config, Mapping) else {}), **getattr(value, "_fn_kwargs", {})}
        return {"class": type(value).__name__, **_plain_dict(config)}
    if hasattr(value, "numpy") or isinstance(value, (np.ndarray, np.generic)):
        return _plain_array(np.asarray(value.numpy() if hasattr(value, "numpy") else value))
    return getattr(value, "__name__", type(value).__name__)


def _plain_dict(value: Mapping[Any, Any]) -> dict[str, Any]:
    if {"class_name", "config"} <= set(value):
        # Keras's form of a serialized object.
        config = value["config"]
        return {
            "class": str(value["class_name"]),
            **(_plain_dict(config) if isinstance(config, Mapping) else {"config": plain(config)}),
        }
    return {str(name): plain(one) for name, one in value.items() if name not in _NOT_COMPARED}


def _plain_array(array: np.ndarray) -> Any:
    if array.size <= _LONGEST_ARRAY:
        return plain(array.tolist())
    digest = hashlib.sha256(array.tobytes()).hexdigest()[:8] if array.dtype != object else ""
    return f"array of shape {array.shape} {digest}".strip()
