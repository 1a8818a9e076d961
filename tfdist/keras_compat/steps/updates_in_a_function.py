"""Lets a step update variables in a `tf.function` that it calls, such as a `train_step` that is itself decorated.

In an update replicas wait for each other. TensorFlow lets them do so in the graph of the step, but not in that of a
function within it. So a function that fails for this reason is traced into the graph of the step, as TensorFlow itself
does with a `tf.function` that is given to `strategy.run`. A function that makes variables before it fails is not traced
again, since these have no values yet.

Source: tensorflow/python/distribute/mirrored_run.py, `_MirroredReplicaContext._merge_call`; upstream issue
tensorflow/tensorflow#59487.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.replicas import is_refused_wait, may_wait, refuses_waits


def _in_the_graph_of_the_step(stock: Callable) -> Callable:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What XLA compiles stays a function.
        if not may_wait() or self._jit_compile:
            return stock(self, *args, **kwargs)
        made: list[Any] = []

        def note(make: Callable, **options: Any) -> Any:
            made.append(make(**options))
            return made[-1]

        try:
            with tf.variable_creator_scope(note):
                return stock(self, *args, **kwargs)
        except RuntimeError as error:
            if made or not is_refused_wait(error):
                raise
        return _traced_here(self, args, kwargs)

    return call


def _traced_here(function: Any, args: Any, kwargs: Any) -> Any:
    """Calls the Python function of a `tf.function`, converted by AutoGraph as TensorFlow converts it."""
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.eager.polymorphic_function import autograph_util

    python, options = function.python_function, function._experimental_autograph_options
    if function._autograph:
        python = autograph_util.py_func_from_autograph(python, options)
    status = ag_ctx.Status.ENABLED if function._autograph else ag_ctx.Status.DISABLED
    args = [*map(_converted, args, function.input_signature or ()), *args[len(function.input_signature or ()) :]]
    with ag_ctx.ControlStatusCtx(status, options):
        return python(*map(_of_numpy, args), **{name: _of_numpy(one) for name, one in kwargs.items()})


def _converted(value: Any, spec: Any) -> Any:
    """Returns an argument as the signature of a `tf.function` asks for it."""
    return tf.convert_to_tensor(value, spec.dtype) if isinstance(spec, tf.TensorSpec) else value


def _of_numpy(value: Any) -> Any:
    """Returns an argument, as a tensor if it is an array."""
    return tf.convert_to_tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _apply() -> None:
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    patch_method(polymorphic_function.Function, "__call__", _in_the_graph_of_the_step)


MEND = Mend(
    name="updates_in_a_function",
    issue="tensorflow/tensorflow#59487",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=refuses_waits,
    apply=_apply,
    defect="a `train_step` with `@tf.function`, or one that calls a function with it in which gradients are applied, "
    "fails with an error that names `merge_call`",
    without_row="the public program updates_in_conditions shows it",
)
