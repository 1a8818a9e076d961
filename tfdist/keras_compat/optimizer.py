"""One base for optimizers of our own, whichever Keras is in use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.which import keras_in_use


def variable_path(variable: Any) -> str:
    """Returns where a variable is in its model: "sequential/dense/kernel" in Keras 3, "dense/kernel" in Keras 2."""
    return str(getattr(variable, "path", None) or variable.name.split(":")[0])


def is_shard(variable: Any) -> bool:
    """Whether a variable is, or is a part of, a variable that parameter servers share."""
    held = getattr(variable, "value", variable) if keras_in_use().is_keras3 else variable
    candidates = [variable] if callable(held) else [variable, held]
    return any(hasattr(one, "_sharded_container") or type(one).__name__ == "ShardedVariable" for one in candidates)


def compute_dtype(variable: Any) -> tf.DType:
    """Returns the dtype that a variable's step is worked out in: float32 for smaller floats."""
    dtype = tf.as_dtype(getattr(variable, "true_dtype", variable.dtype))
    return dtype if dtype.size >= tf.float32.size else tf.float32


class OptimizerBase(tf.keras.optimizers.Optimizer):
    """The Optimizer of the Keras in use, with one way to make slots and to update a variable.

    A subclass names its `SLOTS` and says in `update_variable` what a step does to one variable.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        name: of the optimizer.
        **options: of the Optimizer of the Keras in use, such as clipnorm or use_ema.
    """

    SLOTS: tuple[str, ...] = ()
    _shared: dict[tf.DType, Any]

    def __init__(self, *, learning_rate: Any, name: str, **options: Any) -> None:
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        if keras_in_use().is_keras3:
            super().__init__(learning_rate=learning_rate, name=name, **options)
        else:
            super().__init__(name=name, **options)
            self._learning_rate = self._build_learning_rate(learning_rate)
        self._slots: list[list[Any]] = []
        self._share({})

    def build(self, variables: Any) -> None:
        """Makes the slots of all variables.

        Raises:
            ValueError: for what `check_variables` refuses.
        """
        already = self.built if keras_in_use().is_keras3 else getattr(self, "_built", False)
        if already:
            return
        variables = list(variables)
        self.check_variables(variables, [variable_path(variable) for variable in variables])
        super().build(variables)
        self._slots = []
        if keras_in_use().is_keras3:
            self._slots = [list(slot) for slot in self.add_optimizer_variables(variables, list(self.SLOTS))]
        else:
            self._built = True
            self._slots = [
                [self.add_variable_from_reference(model_variable=v, variable_name=name) for v in variables]
                for name in self.SLOTS
            ]

    def check_variables(self, variables: list[Any], paths: list[str]) -> None:
        """Is given all variables before any slot is made."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """What Keras calls for each variable, on the device that holds it."""
        if keras_in_use().is_keras3:
            index = self._get_variable_index(variable)
            slots = [slot[index].value for slot in self._slots]
        else:
            index = self._index_dict[self._var_key(variable)]
            slots = [slot[index] for slot in self._slots]
            learning_rate = self.learning_rate
        dtype = compute_dtype(variable)
        shared = self._shared[dtype] if dtype in self._shared else self.prepare_step(dtype, learning_rate)
        # Slices of one row are added up: what follows is the dense step.
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        self.update_variable(index, gradient, variable, slots, shared)

    def prepare_step(self, dtype: tf.DType, learning_rate: Any) -> Any:
        """Works out once what a step of all variables shares.

        Args:
            dtype: that the variables' step is worked out in.
            learning_rate: of this step.
        """
        return tf.cast(tf.convert_to_tensor(learning_rate), dtype)

    def update_variable(self, index: int, gradient: tf.Tensor, variable: Any, slots: list[Any], shared: Any) -> None:
        """Makes one step of one variable.

        Args:
            index: of the variable among all.
            gradient: dense, of the variable's shape, and of the dtype that the step is worked out in.
            variable: to be assigned to.
            slots: of the variable, in the order of SLOTS.
            shared: what prepare_step returned for that dtype.
        """
        raise NotImplementedError

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        """Keras 3's update of all variables."""
        with self._sharing(trainable_variables, learning_rate):
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _internal_apply_gradients(self, grads_and_vars: Any) -> Any:
        """Keras 2's update of all variables."""
        grads_and_vars = list(grads_and_vars)
        with self._sharing([variable for _, variable in grads_and_vars], self.learning_rate):
            return super()._internal_apply_gradients(grads_and_vars)

    @contextlib.contextmanager
    def _sharing(self, variables: Any, learning_rate: Any) -> Iterator[None]:
        if not keras_in_use().is_keras3 and self.jit_compile:
            # Keras 2 compiles the step of each variable and keeps it: tensors from outside would stay the first ones.
            yield
            return
        self._share({dtype: self.prepare_step(dtype, learning_rate) for dtype in {compute_dtype(v) for v in variables}})
        try:
            yield
        finally:
            # Tensors of this graph are of no use in another.
            self._share({})

    def _share(self, tensors: dict[tf.DType, Any]) -> None:
        # Keras and checkpoints would track what is assigned in the usual way.
        object.__setattr__(self, "_shared", tensors)

    def _apply_weight_decay(self, variables: Any) -> None:
        """Nothing: decay is part of the update, not a step of its own."""

    def get_config(self) -> dict[str, Any]:
        """Returns the options of the Optimizer of the Keras in use."""
        config = dict(super().get_config())
        if not keras_in_use().is_keras3:
            config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
        return config
