"""Gives the update of each optimizer to the strategy, where the strategy has an attribute `tfdist_updates`.

Optimizers keep their classes. The method that updates variables is replaced, once in a process, and only if a strategy
with `tfdist_updates` is made; under other strategies the replacement calls Keras's own method.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.optimizers.keras3 import build_once
from tfdist.keras_compat.parameter_server.optimizer_options import refuse_optimizer_options
from tfdist.keras_compat.version import keras_in_use


def route_updates() -> None:
    """Replaces the method of the Keras in use that updates variables; to be called once in a process."""
    if keras_in_use().is_keras3:
        from keras.src.optimizers import LossScaleOptimizer
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        BaseOptimizer.apply = _apply_keras3(BaseOptimizer.apply)
        LossScaleOptimizer.apply = _refusing(LossScaleOptimizer.apply)
        return
    kind = tf.keras.optimizers.Optimizer
    kind.apply_gradients = _apply_keras2(kind.apply_gradients)
    for other in (tf.keras.optimizers.legacy.Optimizer, *_loss_scale_optimizers()):
        other.apply_gradients = _refusing(other.apply_gradients)


def _loss_scale_optimizers() -> list[Any]:
    # LossScaleOptimizer and LossScaleOptimizerV3, which are siblings.
    base = tf.keras.mixed_precision.LossScaleOptimizer.__mro__[1]
    kinds = {tf.keras.mixed_precision.LossScaleOptimizer, *base.__subclasses__()}
    return [kind for kind in kinds if "apply_gradients" in vars(kind)]


def _updates() -> Any:
    """Returns what makes the updates of the strategy in whose step this thread is; None for Keras's own update."""
    updates = getattr(tf.distribute.get_strategy(), "tfdist_updates", None)
    return None if updates is None or updates.is_updating else updates


def _refusing(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _updates() is not None:
            raise ValueError(
                "expected an optimizer of tf.keras.optimizers without loss scaling for a strategy with staleness, "
                f"received {type(self).__name__}; use mixed_bfloat16 instead of mixed_float16, and no legacy optimizer."
            )
        return stock(self, *args, **kwargs)

    return apply


def _apply_keras3(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        updates = _updates()
        if updates is None or not len(grads):
            return stock(self, grads, trainable_variables)
        refuse_optimizer_options(self)
        updates.read_versions()
        variables = None if trainable_variables is None else list(trainable_variables)
        if not self.built and variables is not None:
            build_once(self, variables)
        if variables is None:
            variables = list(self._trainable_variables)
        updates.update(self, list(grads), variables, lambda gradients: stock(self, gradients, variables))
        return None

    return apply


def _apply_keras2(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def apply_gradients(self: Any, grads_and_vars: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        updates = _updates()
        pairs = list(grads_and_vars)
        if updates is None or not pairs:
            return stock(self, pairs, name, *args, **kwargs)
        updates.read_versions()
        variables = [variable for _, variable in pairs]
        with tf.init_scope():
            self.build(variables)

        def apply(gradients: Sequence[Any]) -> None:
            stock(self, list(zip(gradients, variables, strict=True)), name, *args, **kwargs)

        updates.update(self, [gradient for gradient, _ in pairs], variables, apply)
        return self.iterations

    return apply_gradients
