"""The variables that a training changes, by names that are the same after a restart of the program."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint.graph_view import ObjectGraphView
from tensorflow.python.trackable.base import Trackable

from tfdist.allreduce.per_replica import PerReplica


def training_variables(model: Any) -> dict[str, tf.Variable]:
    """Returns the variables of a model, its metrics, its optimizers, and of other objects that the model refers to.

    Variables that do not exist yet, such as the residuals of a compression before the first step, are missing. Keras 2
    builds a model without an Input layer in its first step.

    Args:
        model: a compiled Keras model.
    """
    found = _Found()
    found.add("model", model.variables if getattr(model, "built", True) else [])
    found.add_metrics(model.metrics)
    found.add("metrics", getattr(model, "metrics_variables", None) or [v for m in model.metrics for v in m.variables])
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        found.add("optimizer", _variables(optimizer))
    found.add("random", _random_states(model))
    found.add_referred("others", model)
    return found.by_name


def variables_of(objects: Mapping[str, Any]) -> dict[str, tf.Variable]:
    """Returns the variables of models, optimizers, metrics and other objects, and of objects that they refer to.

    Args:
        objects: the objects by name; a variable is an object, too.
    """
    found = _Found()
    for name, one in objects.items():
        found.add(f"objects/{name}", _variables(one))
        found.add(f"objects/{name}/random", _random_states(one))
    for name, one in objects.items():
        found.add_referred(f"others/{name}", one)
    return found.by_name


class _Found:
    """Variables by names that are the same after a restart; each variable has one name."""

    def __init__(self) -> None:
        self.by_name: dict[str, tf.Variable] = {}
        self._known: set[int] = set()

    def add(self, kind: str, variables: Iterable[Any]) -> None:
        for number, variable in enumerate(variables):
            self._add(f"{kind}/{number}/{_last_name(variable)}", variable)

    def add_metrics(self, metrics: Iterable[Any]) -> None:
        """Adds the variables of metrics by the name of each, so that another metric does not take its values."""
        numbers: collections.Counter[str] = collections.Counter()
        for metric in _single_metrics(metrics):
            # Keras numbers the names in the order in which a process makes the metrics.
            name = re.sub(r"_\d+$", "", str(metric.name)).replace("/", " ")
            self.add(f"metrics/{name} {numbers[name]}", metric.variables)
            numbers[name] += 1

    def add_referred(self, kind: str, root: Any) -> None:
        self._add_referred(kind, root, set())

    def _add_referred(self, kind: str, root: Any, walked: set[int]) -> None:
        if not isinstance(root, Trackable) or id(root) in walked:
            return
        trackables, paths = ObjectGraphView(root)._breadth_first_traversal()
        walked.update(map(id, trackables))
        names = ["/".join([kind, *(str(getattr(part, "name", part)) for part in paths[one])]) for one in trackables]
        for name, trackable in zip(names, trackables, strict=True):
            self._add(name, trackable)
        for name, trackable in zip(names, trackables, strict=True):
            # A variable of several replicas has a list of them: its value is that of the variable.
            for path, element in _in_containers(trackable) if _of_tensorflow(trackable) is None else ():
                self._add_referred(f"{name}/{path}", element, walked)

    def _add(self, name: str, value: Any) -> None:
        own = _of_tensorflow(value)
        if own is not None and id(own) not in self._known:
            self._known.add(id(own))
            self.by_name[name] = own


def _in_containers(owner: Any) -> Iterator[tuple[str, Trackable]]:
    """Yields what is in lists and dictionaries of an object of Keras 3, in which TensorFlow does not look."""
    attributes = getattr(owner, "__dict__", {})
    waiting = [(name, value) for name, value in attributes.items() if not isinstance(value, Trackable)]
    seen: set[int] = set()
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Trackable):
            yield path, value
        elif isinstance(value, list | tuple | dict) and id(value) not in seen:
            seen.add(id(value))
            elements = value.items() if isinstance(value, dict) else enumerate(value)
            waiting.extend((f"{path}/{key}", element) for key, element in elements)


def _single_metrics(metrics: Iterable[Any]) -> Iterator[Any]:
    """Yields metrics; Keras 3 has those of compile in one metric."""
    for metric in metrics:
        parts = getattr(metric, "metrics", ())
        if parts and [id(v) for part in parts for v in part.variables] == [id(v) for v in metric.variables]:
            yield from _single_metrics(parts)
        else:
            yield metric


def _variables(owner: Any) -> list[Any]:
    if _of_tensorflow(owner) is not None:
        return [owner]
    variables = getattr(owner, "variables", [])
    return list(variables() if callable(variables) else variables)


def build_optimizer(model: Any) -> None:
    """Makes the variables of a model's optimizer, which Keras 2 makes only in the first step.

    Args:
        model: a compiled and built Keras model, whose optimizer is none of Keras 2's legacy optimizers.
    """
    build = getattr(model.optimizer, "build", None)
    # A second call would make the variables of Keras 3's LossScaleOptimizer twice.
    if build is not None and not getattr(model.optimizer, "built", False):
        with model.distribute_strategy.scope():
            build(model.trainable_variables)


def _random_states(model: Any) -> list[tf.Variable]:
    """Returns the states of the random layers of Keras 2, which does not list them among its variables.

    Raises:
        ValueError: if a layer draws random numbers from operations whose state cannot be read.
    """
    found = []
    for layer in getattr(model, "_flatten_layers", lambda: ())():
        generator = getattr(layer, "_random_generator", None)
        if getattr(generator, "_rng_type", "") == "legacy_stateful":
            raise ValueError(
                f"expected random layers whose state can be restored, received {type(layer).__name__} {layer.name!r} "
                "with the random operations of TensorFlow 1; call "
                "tf.keras.backend.experimental.enable_tf_random_generator() before the model is made."
            )
        state = getattr(getattr(generator, "_generator", None), "state", None)
        if state is not None:
            found.append(state)
    return found


def _of_tensorflow(value: Any) -> tf.Variable | None:
    """Returns the variable of TensorFlow behind a variable of Keras or a PerReplica, or None for other values."""
    if isinstance(value, PerReplica):
        value = value._variable
    kinds = (tf.Variable, tf.distribute.DistributedValues)
    if not isinstance(value, kinds):
        # The `value` of Keras 3's variables may be a tensor of another dtype.
        value = getattr(value, "_value", None)
    return value if isinstance(value, kinds) and value.dtype not in (tf.resource, tf.variant, tf.string) else None


def _last_name(variable: Any) -> str:
    # Keras numbers the names of layers in the order in which a process makes them, such as dense_3. Names of optimizer
    # slots contain them, as in dense_3_kernel_momentum.
    return str(variable.name).split("/")[-1].split(":")[0].split("_")[-1]
