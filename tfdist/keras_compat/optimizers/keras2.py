"""Adapters for Keras 2: the hook replaces the sum over replicas, which comes before clipping and the update."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfdist.allreduce.update_hook import UpdateHook
from tfdist.keras_compat.losses.weighting import rows_of_step, weighted_gradients
from tfdist.keras_compat.optimizers.hooked import hook_of


def methods_of(optimizer: Any) -> dict[str, Any]:
    """Returns the methods that replace methods of an optimizer with a hook, by name.

    Args:
        optimizer: an optimizer of Keras 2, or a legacy optimizer such as those of TensorFlow Addons.
    """
    if isinstance(optimizer, tf.keras.optimizers.Optimizer):
        who, instead = "where a LossScaleOptimizer of Keras 2 sums the gradients", "use mixed_bfloat16"
        aggregate = Aggregate(optimizer, who=who, instead=instead)
        return {"aggregate_gradients": aggregate, "apply_gradients": ApplyGradients(optimizer)}
    who, instead = "for a legacy optimizer of Keras 2", "take the optimizer of tf.keras.optimizers"
    return {"_aggregate_gradients": Aggregate(optimizer, who=who, instead=instead)}


class Aggregate:
    """Replaces aggregate_gradients of an optimizer with a hook. It cannot postpone the update to a later pass.

    Args:
        optimizer: an optimizer of Keras 2.
        who: the case in which gradients cannot be accumulated, for the error message.
        instead: an alternative to accumulation, for the error message.
    """

    def __init__(self, optimizer: Any, *, who: str, instead: str) -> None:
        self._optimizer, self._who, self._instead = optimizer, who, instead

    def __call__(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """Returns pairs of a gradient, summed over replicas, and its variable."""
        hook = _hook(self._optimizer)
        if hook.lets_replicas_differ:
            raise ValueError(
                f"expected gradients without a loss scale for {hook.program}, received a LossScaleOptimizer; "
                f"{self._instead}."
            )
        if hook.calls_update_later:
            raise ValueError(
                f"expected backward_passes_per_step=1 {self._who}, received {hook.passes}; leave it out, or "
                f"{self._instead}."
            )
        gradients, variables = zip(*grads_and_vars, strict=True)
        return hook.run(
            weighted_gradients(gradients), variables, None, lambda sums: list(zip(sums, variables, strict=True))
        )


class ApplyGradients:
    """Replaces apply_gradients of an optimizer with a hook, which may accumulate gradients.

    Args:
        optimizer: an optimizer of Keras 2.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __call__(
        self, grads_and_vars: Any, name: Any = None, skip_gradients_aggregation: bool = False, **options: Any
    ) -> Any:
        """Updates the variables as in Keras; with accumulation, only at the last pass."""
        optimizer, hook = self._optimizer, _hook(self._optimizer)
        stock = functools.partial(type(optimizer).apply_gradients, optimizer)
        summed_already = skip_gradients_aggregation or not options.get("experimental_aggregate_gradients", True)
        if not hook.calls_update_later or summed_already:
            return stock(grads_and_vars, name, skip_gradients_aggregation, **options)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def across(strategy: Any) -> None:
            with tf.init_scope(), strategy.scope():
                optimizer.build(variables)

        tf.distribute.get_replica_context().merge_call(across)

        def update(sums: list[Any]) -> None:
            stock(list(zip(sums, variables, strict=True)), name, skip_gradients_aggregation=True)

        gradients = weighted_gradients([gradient for gradient, _ in pairs])
        hook.run(gradients, variables, None, update, known=variables, rows=rows_of_step())
        return optimizer.iterations


def _hook(optimizer: Any) -> UpdateHook:
    hook = hook_of(optimizer)
    assert hook is not None
    return hook
