"""OptimizerBase: the base class of tfdist's own optimizers, for any Keras in use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras_in_use


def variable_path(variable: Any) -> str:
    """Returns the path of a variable in its model: "sequential/dense/kernel" in Keras 3, "dense/kernel" in Keras 2."""
    return str(getattr(variable, "path", None) or variable.name.split(":")[0])


def held_variable(variable: Any) -> Any:
    """Returns the tf.Variable of a Keras 3 variable; returns other variables unchanged."""
    held = getattr(variable, "value", variable)
    # `value` is a property of a Keras 3 variable, but a method of a tf.Variable.
    return variable if callable(held) else held


def is_shard(variable: Any) -> bool:
    """Returns whether a variable is a ShardedVariable of parameter servers, or a part of one."""
    candidates = (variable, held_variable(variable))
    return any(hasattr(one, "_sharded_container") or type(one).__name__ == "ShardedVariable" for one in candidates)


def compute_dtype(variable: Any) -> tf.DType:
    """Returns the dtype in which the step of a variable is computed: its own dtype, or float32 for smaller floats."""
    dtype = tf.as_dtype(getattr(variable, "true_dtype", variable.dtype))
    return dtype if dtype.size >= tf.float32.size else tf.float32


def _slot_name(variable: Any, name: str) -> str:
    """Returns the name that the Keras in use gives to a slot of a variable."""
    if keras_in_use().is_keras3:
        return f"{variable_path(variable).replace('/', '_')}_{name}"
    return f"{name}/{variable._shared_name}"


def _of_this_keras(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config without the entries that only the other Keras has."""
    if keras_in_use().is_keras3:
        return {key: value for key, value in config.items() if key not in ("is_legacy_optimizer", "jit_compile")}
    ours = dict(config)
    for name in ("loss_scale_factor", "gradient_accumulation_steps"):
        value = ours.pop(name, None)
        if value is not None:
            raise ValueError(
                f"expected no {name} in a config, received {value}; load the config with Keras 3, since optimizers of "
                f"Keras 2 have no {name}."
            )
    return ours


class OptimizerBase(tf.keras.optimizers.Optimizer):
    """Optimizer of the Keras in use, with one interface for slots and updates in Keras 2 and Keras 3.

    A subclass lists the names of its slots in `SLOTS`, and implements the step of one variable in `update_variable`.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        name: name of the optimizer.
        **options: options of the Optimizer of the Keras in use, such as clipnorm or use_ema.
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
            ValueError: if `check_variables` refuses the variables.
        """
        if self.is_built():
            return
        variables = list(variables)
        self.check_variables(variables, [variable_path(variable) for variable in variables])
        super().build(variables)
        self._slots = []
        if keras_in_use().is_keras3:
            slots = [[self._add_slot(variable, name) for name in self.SLOTS] for variable in variables]
            self._slots = [list(slot) for slot in zip(*slots, strict=True)]
        else:
            self._built = True
            self._slots = [[self._add_slot(variable, name) for variable in variables] for name in self.SLOTS]

    def is_built(self) -> bool:
        """Returns whether the slots have been made."""
        return bool(self.built if keras_in_use().is_keras3 else getattr(self, "_built", False))

    def _add_slot(self, variable: Any, name: str) -> Any:
        """Makes a slot of the dtype in which the step is computed, because a smaller float would lose digits."""
        dtype = compute_dtype(variable)
        if tf.as_dtype(getattr(variable, "true_dtype", variable.dtype)) == dtype:
            return self.add_variable_from_reference(variable, name)
        with tf.distribute.get_strategy().extended.colocate_vars_with(held_variable(variable)):
            return self.add_variable(shape=variable.shape, dtype=dtype.name, name=_slot_name(variable, name))

    def check_variables(self, variables: list[Any], paths: list[str]) -> None:
        """Does nothing; a subclass may raise ValueError for some variables. Called before any slot is made."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """Updates one variable; Keras calls it on the device that holds the variable."""
        if keras_in_use().is_keras3:
            index = self._get_variable_index(variable)
            slots = [slot[index].value for slot in self._slots]
        else:
            index = self._index_dict[self._var_key(variable)]
            slots = [slot[index] for slot in self._slots]
            learning_rate = self.learning_rate
        dtype = compute_dtype(variable)
        shared = self._shared[dtype] if dtype in self._shared else self.prepare_step(dtype, learning_rate)
        # The conversion adds up slices of the same row, so that the step is the step of a dense gradient.
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        self.update_variable(index, gradient, variable, slots, shared)

    def prepare_step(self, dtype: tf.DType, learning_rate: Any) -> Any:
        """Returns the values that all variables of one dtype share in a step.

        Args:
            dtype: dtype in which the step of the variables is computed.
            learning_rate: learning rate of this step.
        """
        return tf.cast(tf.convert_to_tensor(learning_rate), dtype)

    def update_variable(self, index: int, gradient: tf.Tensor, variable: Any, slots: list[Any], shared: Any) -> None:
        """Makes one step of one variable.

        Args:
            index: index of the variable among all variables.
            gradient: dense gradient, of the variable's shape, and of the dtype in which the step is computed.
            variable: variable to update.
            slots: slots of the variable, in the order of SLOTS.
            shared: the values that prepare_step returned for that dtype.
        """
        raise NotImplementedError

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        """Updates all variables; the method of Keras 3."""
        with self._sharing(trainable_variables, learning_rate):
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _internal_apply_gradients(self, grads_and_vars: Any) -> Any:
        """Updates all variables; the method of Keras 2."""
        grads_and_vars = list(grads_and_vars)
        with self._sharing([variable for _, variable in grads_and_vars], self.learning_rate):
            return super()._internal_apply_gradients(grads_and_vars)

    @contextlib.contextmanager
    def _sharing(self, variables: Any, learning_rate: Any) -> Iterator[None]:
        if not keras_in_use().is_keras3 and self.jit_compile:
            # Keras 2 compiles the step of a variable once; the compiled code would keep the tensors of the first step.
            yield
            return
        self._share({dtype: self.prepare_step(dtype, learning_rate) for dtype in {compute_dtype(v) for v in variables}})
        try:
            yield
        finally:
            # Another graph cannot use the tensors of this graph.
            self._share({})

    def _share(self, tensors: dict[tf.DType, Any]) -> None:
        # object.__setattr__, because Keras and checkpoints track attributes that are set in the usual manner.
        object.__setattr__(self, "_shared", tensors)

    def _clip_gradients(self, grads: Any) -> Any:
        """Clips a sparse gradient by the sum of the slices of each row, not slice by slice."""
        clips = any(getattr(self, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
        return super()._clip_gradients(
            [tf.convert_to_tensor(g) if clips and isinstance(g, tf.IndexedSlices) else g for g in grads]
        )

    def _apply_weight_decay(self, variables: Any) -> None:
        """Does nothing: weight decay is part of the update."""

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns the optimizer that a config of Keras 2 or Keras 3 describes.

        Raises:
            ValueError: for an option that the Keras in use does not have.
        """
        return super().from_config(_of_this_keras(config), custom_objects)

    def get_config(self) -> dict[str, Any]:
        """Returns the options of the Optimizer of the Keras in use."""
        config = dict(super().get_config())
        if not keras_in_use().is_keras3:
            config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
        return config
