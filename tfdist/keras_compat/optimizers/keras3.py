"""Adapter for Keras 3: the hook runs before `apply`, so that gradients are unscaled and clipped after the sum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.update_hook import UpdateHook
from tfdist.keras_compat.losses.weighting import rows_of_step, weighted_gradients
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.keras_compat.optimizers.summed_gradients import is_summed, summed


def methods_of(optimizer: Any) -> dict[str, Any]:
    """Returns the methods that replace methods of an optimizer with a hook, by name.

    Args:
        optimizer: an optimizer of Keras 3.
    """
    return {"apply": Apply(optimizer), "build": Build(optimizer)}


class Apply:
    """Replaces `apply` of an optimizer with a hook.

    Args:
        optimizer: an optimizer of Keras 3.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __call__(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates the variables as in Keras; first sums the gradients over replicas, unless they are sums already."""
        stock = functools.partial(type(self._optimizer).apply, self._optimizer)
        if is_summed() or not len(grads):
            return stock(grads, trainable_variables)
        hook = hook_of(self._optimizer)
        assert hook is not None
        return apply_with_hook(self._optimizer, hook, stock, grads, trainable_variables)


class Build:
    """Replaces `build` of an optimizer with a hook.

    Args:
        optimizer: an optimizer of Keras 3.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __call__(self, variables: Any) -> None:
        """Makes the slots as in Keras, then the variables of the hook."""
        type(self._optimizer).build(self._optimizer, variables)
        hook = hook_of(self._optimizer)
        if hook is not None and tf.distribute.in_cross_replica_context():
            hook.built(tf.distribute.get_strategy(), list(variables))


def apply_with_hook(optimizer: Any, hook: UpdateHook, stock: Callable, grads: Any, trainable_variables: Any) -> Any:
    """Runs the hook, then calls the optimizer's own `apply` with the sums.

    Args:
        optimizer: the optimizer that has the hook, or a LossScaleOptimizer around it.
        hook: the hook of the optimizer.
        stock: the optimizer's own `apply`.
        grads: gradients of this replica.
        trainable_variables: variables to update; None for all variables that the optimizer was built with.
    """
    variables = None if trainable_variables is None else list(trainable_variables)
    if not optimizer.built and variables is not None:
        build_once(optimizer, variables)

    def update(sums: list[Any]) -> Any:
        with summed():
            return stock(sums, variables)

    inner = getattr(optimizer, "inner_optimizer", optimizer)
    scale = getattr(optimizer, "dynamic_scale", None)
    return hook.run(
        weighted_gradients(grads),
        inner._trainable_variables if variables is None else variables,
        None if scale is None else tf.convert_to_tensor(scale),
        update,
        known=inner._trainable_variables if optimizer.built else (),
        rows=rows_of_step(),
    )


def build_once(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds an optimizer once for all replicas, outside of a traced function; call it in replica context.

    Args:
        optimizer: an optimizer of Keras 3.
        variables: the variables that the optimizer will update.
    """

    def across(strategy: Any) -> None:
        with tf.init_scope(), strategy.scope():
            optimizer.build(variables)
            optimizer.built = True

    tf.distribute.get_replica_context().merge_call(across)
