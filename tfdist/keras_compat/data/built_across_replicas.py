"""Builds layers, compiled metrics and compiled losses that are first called within a step, once for all replicas.

Without a strategy, Keras makes their variables when the step is traced. On several replicas TensorFlow makes the value
of the second replica from the variable of the first one, which does not exist before the traced step runs. So the
replicas wait for each other, and the variables are made outside of the replicas, as those of a model that is built
before training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import patch_method
from tfdist.keras_compat.replicas import is_refused_wait, on_several_replicas

# Keras's attribute for the names of the layers that are called.
_SCOPES = "name_scope_stack"


def _specs(values: Any) -> Any:
    """Returns values whose tensors, which belong to the replica, are replaced by their shapes and dtypes."""
    from keras.src import tree
    from keras.src.backend import KerasTensor

    def spec(value: Any) -> Any:
        if not isinstance(value, (tf.Tensor, tf.SparseTensor)):
            return value
        return KerasTensor(value.shape, value.dtype.name, sparse=isinstance(value, tf.SparseTensor))

    return tree.map_structure(spec, values)


def _once_for_all_replicas(build: Callable[[], Any]) -> bool:
    """Calls a function in cross-replica context, outside of a traced function; call it in replica context.

    Args:
        build: makes variables; each replica gives the same function.

    Returns:
        False if the replicas cannot wait for each other here, in a function or a loop within the step.
    """
    from keras.src.backend.common import global_state

    # Each thread has its own, of which the paths of variables consist.
    scopes = list(global_state.get_global_attribute(_SCOPES, []))

    def across(strategy: Any) -> None:
        before = global_state.get_global_attribute(_SCOPES, [])
        global_state.set_global_attribute(_SCOPES, scopes)
        try:
            with tf.init_scope(), strategy.scope():
                build()
        finally:
            global_state.set_global_attribute(_SCOPES, before)

    try:
        tf.distribute.get_replica_context().merge_call(across)
    except RuntimeError as error:
        if not is_refused_wait(error):
            raise
        return False
    return True


def _layer_built(stock: Callable) -> Callable:
    def maybe_build(self: Any, call_spec: Any) -> None:
        if self.built or not on_several_replicas():
            return stock(self, call_spec)
        specs = copy.copy(call_spec)
        specs.arguments_dict = _specs(call_spec.arguments_dict)
        specs.tensor_arguments_dict = {name: specs.arguments_dict[name] for name in call_spec.tensor_arguments_dict}
        specs.first_arg = _specs(call_spec.first_arg)
        if not _once_for_all_replicas(lambda: stock(self, specs)):
            stock(self, call_spec)

    return maybe_build


def _built_symbolically(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.built and on_several_replicas():
            from keras.src import backend

            # All arguments are described before the replicas wait. Nothing is assigned: the call is symbolic.
            specs, named = _specs(args), _specs(kwargs)
            _once_for_all_replicas(lambda: backend.compute_output_spec(stock, self, *specs, **named))
        return stock(self, *args, **kwargs)

    return method


def build_across_replicas() -> None:
    """Patches Keras 3, so that what is first called on several replicas is built once for all of them."""
    from keras.src.layers.layer import Layer
    from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics

    patch_method(Layer, "_maybe_build", _layer_built)
    patch_method(CompileMetrics, "update_state", _built_symbolically)
    patch_method(CompileLoss, "call", _built_symbolically)
