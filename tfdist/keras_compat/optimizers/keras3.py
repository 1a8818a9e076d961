"""The adapter of Keras 3: the hook comes before `apply`, so that unscaling, clipping and the update see sums."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.hook import GradientHook
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.keras_compat.optimizers.summed_gradients import is_summed, summed


def methods_of(optimizer: Any) -> dict[str, Any]:
    """Returns the methods that replace those of an optimizer with a hook, by name.

    Args:
        optimizer: of Keras 3.
    """
    return {"apply": Apply(optimizer)}


class Apply:
    """BaseOptimizer.apply of one optimizer with a hook.

    Args:
        optimizer: of Keras 3.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __call__(self, grads: Any, trainable_variables: Any = None) -> Any:
        """See Keras; sums over replicas unless the gradients are sums already."""
        stock = functools.partial(type(self._optimizer).apply, self._optimizer)
        if is_summed() or not len(grads):
            return stock(grads, trainable_variables)
        hook = hook_of(self._optimizer)
        assert hook is not None
        return apply_with_hook(self._optimizer, hook, stock, grads, trainable_variables)


def apply_with_hook(optimizer: Any, hook: GradientHook, stock: Callable, grads: Any, trainable_variables: Any) -> Any:
    """Runs the hook and, with the sums, the optimizer's own `apply`.

    Args:
        optimizer: that has the hook, or a LossScaleOptimizer around it.
        hook: of the optimizer.
        stock: the optimizer's own `apply`.
        grads: of this replica.
        trainable_variables: None for all variables that the optimizer was built with.
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
        list(grads),
        inner._trainable_variables if variables is None else variables,
        None if scale is None else tf.convert_to_tensor(scale),
        update,
        known=inner._trainable_variables if optimizer.built else (),
    )


def build_once(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the variables of an optimizer once, not on each replica's thread, outside of a traced function.

    Args:
        optimizer: of Keras 3; called in replica context.
        variables: that the optimizer will update.
    """

    def across(strategy: Any) -> None:
        with tf.init_scope(), strategy.scope():
            optimizer.build(variables)
            optimizer.built = True

    tf.distribute.get_replica_context().merge_call(across)
