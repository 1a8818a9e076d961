"""Puts a gradient path of our own before the update of an optimizer of either Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.accumulation import Accumulation
from tfdist.allreduce.aggregation import is_dense
from tfdist.allreduce.options_of import is_of_tfdist
from tfdist.allreduce.path import GradientPath
from tfdist.keras_compat.optimizers.summed_gradients import is_summed, summed
from tfdist.keras_compat.version import keras_in_use

_SUPPORTED = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)


class Hook(tf.__internal__.tracking.AutoTrackable):
    """What an optimizer holds of us.

    Args:
        path: sums gradients over replicas.
        passes: backward passes an update is made of.
    """

    def __init__(self, path: GradientPath, passes: int) -> None:
        super().__init__()
        self.path = path
        self.accumulation = Accumulation(passes) if passes > 1 else None
        object.__setattr__(self, "_places", {})

    def run(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        scale: Any,
        update: Callable[[list[Any]], Any],
        *,
        known: Sequence[Any] = (),
    ) -> Any:
        """Sums gradients and calls the update with the sums, now or at a later pass; in replica context.

        Args:
            gradients: of this replica.
            variables: that they are of.
            scale: the loss scale in them, or None.
            update: takes the gradients of the global batch.
            known: all variables that the optimizer was built with, as far as it says.
        """
        gradients = [
            tf.ensure_shape(gradient, variable.shape) if is_dense(gradient) else gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        given = {_key(variable) for variable in variables}
        others = [variable for variable in known if _key(variable) not in given]
        self._build([*gradients, *(None for _ in others)], [*variables, *others])
        indices = self._indices(variables)

        def sum_and_update(given: Sequence[Any]) -> Any:
            return update(self.path.sum_gradients(given, indices=indices, scale=scale))

        if self.accumulation is None:
            return sum_and_update(gradients)
        # The passes of an update may name the variables in different orders.
        places = {place: i for i, place in enumerate(indices)}
        return self.accumulation.add(
            [gradients[places[place]] for place in range(len(indices))],
            lambda means: sum_and_update([means[place] for place in indices]),
        )

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        # A SavedModel is for prediction, and each replica's own values cannot be part of its graph.
        return {} if save_type == "savedmodel" else super()._trackable_children(save_type, **options)

    def _indices(self, variables: Sequence[Any]) -> list[int]:
        """Returns the places of variables among those that it was built with; behind them for others."""
        unknown = [variable.name for variable in variables if _key(variable) not in self._places]
        # Without compression nothing is kept for a variable.
        refused = bool(unknown) and self.path.compresses
        if refused or (self.accumulation is not None and (unknown or len(variables) != len(self._places))):
            raise ValueError(
                "expected the variables that DistributedOptimizer was first given gradients of, received "
                f"{', '.join(unknown) or f'{len(variables)} of {len(self._places)}'}; "
                "use an optimizer of its own for every set of variables."
            )
        return [self._places.get(_key(variable), len(self._places)) for variable in variables]

    def _build(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        context = tf.distribute.get_replica_context()
        strategy = context.strategy
        if tf.distribute.has_strategy() and not isinstance(strategy, _SUPPORTED):
            raise ValueError(
                "expected one of the strategies one_device, mirrored and multi_worker_mirrored for "
                f"DistributedOptimizer, received {type(strategy).__name__}; use the optimizer without it."
            )
        if strategy.num_replicas_in_sync > 1 and not is_of_tfdist(strategy):
            raise ValueError(
                f"expected a strategy of tfdist for DistributedOptimizer, received {type(strategy).__name__} itself; "
                "make it with tfdist.create_strategy."
            )
        if self.path.built:
            return
        shapes = [tuple(variable.shape) for variable in variables]
        dtypes = [tf.as_dtype(variable.dtype).name for variable in variables]
        # Accumulated slices are dense.
        dense = [self.accumulation is not None or not isinstance(g, tf.IndexedSlices) for g in gradients]

        def across(strategy: Any) -> None:
            # Every replica traces this; the first makes the variables.
            if self.path.built:
                return
            with tf.init_scope(), strategy.scope():
                self._places.update({_key(variable): i for i, variable in enumerate(variables)})
                self.path.build([shape if one else None for shape, one in zip(shapes, dense, strict=True)], dtypes)
                if self.accumulation is not None:
                    self.accumulation.build(shapes, dtypes)

        context.merge_call(across)


def _key(variable: Any) -> Any:
    # Keras 2's optimizers are given the same variable as other objects in a replica and outside.
    return getattr(variable, "_unique_id", None) or id(variable)


def hook_of(optimizer: Any) -> Hook | None:
    """Returns the hook of an optimizer, or of the one that a LossScaleOptimizer wraps."""
    found = getattr(optimizer, "_tfdist_hook", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    return found if found is not None or inner is None else hook_of(inner)


def attach(optimizer: Any, hook: Hook) -> Any:
    """Makes an optimizer, in place, one whose gradients go the way of the hook; returns it.

    Keras takes it for what it was where it saves it: its class says so.

    Args:
        optimizer: of the Keras in use, built or not.
        hook: to be called before the update.

    Raises:
        ValueError: for what is no optimizer of the Keras in use, and for one that has a hook.
    """
    bases = [tf.keras.optimizers.Optimizer]
    legacy = getattr(tf.keras.optimizers, "legacy", None)
    if not keras_in_use().is_keras3 and legacy is not None:
        bases.append(legacy.Optimizer)
    if not isinstance(optimizer, tuple(bases)):
        raise ValueError(
            f"expected an optimizer of {keras_in_use().name}, received {type(optimizer).__name__}; make it with "
            "tf.keras.optimizers or tfdist.optimizers."
        )
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        # A LossScaleOptimizer: scales are its own, sums those of the optimizer that it wraps.
        attach(inner, hook)
        return optimizer
    if hook_of(optimizer) is not None:
        raise ValueError("expected an optimizer that is not distributed yet, received one that is; wrap it once.")
    if keras_in_use().is_keras3:
        mixin: type = _Keras3
    elif isinstance(optimizer, bases[0]):
        mixin = _Keras2
    else:
        mixin = _Legacy
    stock = type(optimizer)
    made = type(stock.__name__, (mixin, stock), {"__module__": stock.__module__, "_tfdist_stock": stock})
    object.__setattr__(optimizer, "__class__", made)
    optimizer._tfdist_hook = hook
    if mixin is _Legacy:
        # It tracks nothing by itself.
        optimizer._track_trackable(hook, "_tfdist_hook", overwrite=True)
    return optimizer


class _Hooked:
    _tfdist_stock: type

    def _stock(self) -> type:
        return type(self)._tfdist_stock

    # What Keras and pickle ask for; type() tells the truth.
    __class__ = property(_stock)


class _Keras3(_Hooked):
    """Before BaseOptimizer.apply: unscaling, clipping and the update see sums."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        stock = super().apply  # type: ignore[misc]
        if is_summed() or not len(grads):
            return stock(grads, trainable_variables)
        return run_hook(self, self._tfdist_hook, stock, grads, trainable_variables)  # type: ignore[attr-defined]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars if is_summed() else super()._all_reduce_sum_gradients(grads_and_vars)  # type: ignore[misc]


def run_hook(optimizer: Any, hook: Hook, stock: Callable, grads: Any, trainable_variables: Any) -> Any:
    """Keras 3's apply, with the sum of the hook before it.

    Args:
        optimizer: with the hook, or a LossScaleOptimizer around it.
        hook: of the optimizer.
        stock: its own apply.
        grads: of this replica.
        trainable_variables: None for all that it was built with.
    """
    variables = None if trainable_variables is None else list(trainable_variables)
    if not optimizer.built and variables is not None:
        build_once(optimizer, variables)

    def update(sums: list[Any]) -> Any:
        with summed():
            return stock(sums, variables)

    of = getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables if variables is None else variables
    scale = getattr(optimizer, "dynamic_scale", None)
    scale = None if scale is None else tf.convert_to_tensor(scale)
    known = getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables if optimizer.built else ()
    return hook.run(list(grads), of, scale, update, known=known)


def build_once(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the variables of Keras 3's optimizer once, not on each replica's thread, outside of a traced function."""

    def across(strategy: Any) -> None:
        with tf.init_scope(), strategy.scope():
            optimizer.build(variables)
            optimizer.built = True

    tf.distribute.get_replica_context().merge_call(across)


class _Keras2(_Hooked):
    """In the place of Keras 2's aggregate_gradients, which comes before clipping and the update."""

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        who, instead = "where a LossScaleOptimizer of Keras 2 sums the gradients", "use mixed_bfloat16"
        return _summed_pairs(self._tfdist_hook, grads_and_vars, who=who, instead=instead)  # type: ignore[attr-defined]

    def apply_gradients(
        self, grads_and_vars: Any, name: Any = None, skip_gradients_aggregation: bool = False, **options: Any
    ) -> Any:
        stock = super().apply_gradients  # type: ignore[misc]
        hook: Hook = self._tfdist_hook  # type: ignore[attr-defined]
        summed_already = skip_gradients_aggregation or not options.get("experimental_aggregate_gradients", True)
        if hook.accumulation is None or summed_already:
            return stock(grads_and_vars, name, skip_gradients_aggregation, **options)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def across(strategy: Any) -> None:
            with tf.init_scope(), strategy.scope():
                self.build(variables)  # type: ignore[attr-defined]

        tf.distribute.get_replica_context().merge_call(across)

        def update(sums: list[Any]) -> None:
            stock(list(zip(sums, variables, strict=True)), name, skip_gradients_aggregation=True)

        hook.run([gradient for gradient, _ in pairs], variables, None, update)
        return self.iterations  # type: ignore[attr-defined]


class _Legacy(_Hooked):
    """In the place of the aggregation of Keras 2's legacy optimizers, TensorFlow Addons' among them."""

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        who, instead = "for a legacy optimizer of Keras 2", "take the optimizer of tf.keras.optimizers"
        return _summed_pairs(self._tfdist_hook, grads_and_vars, who=who, instead=instead)  # type: ignore[attr-defined]


def _summed_pairs(hook: Hook, grads_and_vars: Any, *, who: str, instead: str) -> list[tuple[Any, Any]]:
    """Returns the sums beside their variables, where the update is not ours to put off."""
    if hook.accumulation is not None:
        raise ValueError(
            f"expected backward_passes_per_step=1 {who}, received {hook.accumulation.passes}; leave it out, or "
            f"{instead}."
        )
    gradients, variables = zip(*grads_and_vars, strict=True)
    return hook.run(gradients, variables, None, lambda sums: list(zip(sums, variables, strict=True)))
