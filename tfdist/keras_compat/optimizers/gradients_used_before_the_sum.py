"""Mends Keras 3's optimizers, which use a replica's own gradient before the sum over replicas.

Each replica clips its own gradient. LossScaleOptimizer checks only the first replica for infinities, and an infinity of
another replica gets into the weights. With the mend the order is the order of one device: sum, unscale, check that the
sums are finite, clip, update. Conditions at run time (accumulation, a skipped step, weights overwritten by their
average) are evaluated once, in cross-replica context, because `merge_call` inside of tf.cond fails
(keras-team/keras#20582).

Source: BaseOptimizer.apply, TFOptimizer._backend_update_step and LossScaleOptimizer._tf_apply. No upstream issue is
known for the order.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.allreduce.options_of import refuse_lost_compression
from tfdist.keras_compat.losses.weighting import weighted_gradients
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.keras_compat.optimizers.keras3 import apply_with_hook, build_once
from tfdist.keras_compat.optimizers.summed_gradients import is_summed, summed
from tfdist.keras_compat.replicas import is_nested, on_several_replicas


def _defect_present() -> bool:
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    return "_all_reduce_sum_gradients" in inspect.getsource(TFOptimizer._backend_update_step)


def _is_a_replica() -> bool:
    return tf.distribute.in_cross_replica_context() is False and isinstance(
        tf.distribute.get_strategy(),
        (
            tf.distribute.MirroredStrategy,
            tf.distribute.MultiWorkerMirroredStrategy,
            tf.distribute.experimental.CentralStorageStrategy,
            tf.distribute.TPUStrategy,
        ),
    )


def _apply_summed(stock: Callable) -> Callable:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if is_summed() or not len(grads):
            return stock(self, grads, trainable_variables)
        hook = hook_of(self)
        if hook is not None:
            return apply_with_hook(self, hook, functools.partial(stock, self), grads, trainable_variables)
        if not on_several_replicas():
            if not self.built and trainable_variables is not None and is_nested():
                # Fails as the update would, but before variables are made that a function would lose with its graph.
                build_once(self, list(trainable_variables))
            # The only replica of a strategy has the sums, but its `merge_call` fails inside of tf.cond all the same.
            with summed() if _is_a_replica() else contextlib.nullcontext():
                return stock(self, grads, trainable_variables)
        variables = None if trainable_variables is None else list(trainable_variables)
        if not self.built and variables is not None:
            build_once(self, variables)
        refuse_lost_compression(tf.distribute.get_strategy(), type(self).__name__)
        grads = sum_gradients(weighted_gradients(grads))
        with summed():
            return stock(self, grads, variables)

    return apply


def _scaled_apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
    """Updates a LossScaleOptimizer with summed gradients: either all replicas skip the step, or no replica does."""
    if not is_summed():
        self._tfdist_stock_tf_apply(grads, trainable_variables)
        return
    finite = self.check_finite(grads)
    context = tf.distribute.get_replica_context()
    context.merge_call(_update_if_finite, args=(self, finite, list(grads), trainable_variables))


def _update_if_finite(strategy: Any, optimizer: Any, finite: Any, grads: Any, variables: Any) -> None:
    optimizer, finite = (strategy.experimental_local_results(value)[0] for value in (optimizer, finite))

    def update(gradients: Any) -> None:
        unscaled = [
            g if g is None or getattr(v, "overwrite_with_gradient", False) else g / optimizer.dynamic_scale
            for g, v in zip(gradients, variables or optimizer.inner_optimizer._trainable_variables, strict=True)
        ]
        with summed():
            optimizer.inner_optimizer.apply(unscaled, trainable_variables=variables)

    def grow() -> None:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 2.0)

    def count() -> None:
        optimizer.step_counter.assign(optimizer.step_counter + 1)

    def update_and_count() -> None:
        strategy.extended.call_for_each_replica(update, args=(grads,))
        due = tf.equal(tf.convert_to_tensor(optimizer.step_counter), optimizer.dynamic_growth_steps - 1)
        tf.cond(due, grow, count)

    # `finite` is equal on all replicas, because the sums are equal.
    tf.cond(finite, update_and_count, optimizer._stateful_handle_non_finite_grads)


def _conditions_across_replicas(stock: Callable) -> Callable:
    # Since Keras 3.10 the caller of this method counts the steps.
    counts_steps = "_iterations.assign_add" in inspect.getsource(stock)

    def apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> None:
        overwrites = self.use_ema and self.ema_overwrite_frequency
        if not is_summed() or not (self.gradient_accumulation_steps or overwrites):
            stock(self, grads, trainable_variables)
            return
        tf.distribute.get_replica_context().merge_call(
            _accumulate_or_update, args=(self, list(grads), trainable_variables)
        )
        if counts_steps:
            self._iterations.assign_add(1)

    def _accumulate_or_update(strategy: Any, optimizer: Any, grads: Any, variables: Any) -> None:
        replicas = strategy.extended.call_for_each_replica
        optimizer = strategy.experimental_local_results(optimizer)[0]
        steps, frequency = optimizer.gradient_accumulation_steps, optimizer.ema_overwrite_frequency
        accumulators = (
            [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in variables] if steps else []
        )

        def update(gradients: Any) -> None:
            if steps:
                gradients = [(g + total) / steps for g, total in zip(gradients, accumulators, strict=True)]
            with summed():
                gradients = optimizer._clip_gradients(gradients)
                optimizer._apply_weight_decay(variables)
                optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)
            if steps:
                optimizer._backend_reset_gradient_accumulators()

        def accumulate(gradients: Any) -> None:
            optimizer._backend_increment_gradient_accumulators(gradients, accumulators)

        def average() -> None:
            optimizer._update_model_variables_moving_average(optimizer._trainable_variables)

        if steps:
            tf.cond(
                tf.equal((tf.convert_to_tensor(optimizer._iterations) + 1) % steps, 0),
                lambda: replicas(update, args=(grads,)),
                lambda: replicas(accumulate, args=(grads,)),
            )
        else:
            replicas(update, args=(grads,))
        if optimizer.use_ema:
            replicas(average)
            if frequency:
                tf.cond(
                    tf.equal((tf.convert_to_tensor(optimizer.iterations) + 1) % frequency, 0),
                    lambda: optimizer._overwrite_model_variables_with_average_value(optimizer._trainable_variables),
                    lambda: None,
                )

    return apply_gradients


def _sum_once(stock: Callable) -> Callable:
    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        return grads_and_vars if is_summed() else stock(self, grads_and_vars)

    return all_reduce_sum_gradients


def _apply() -> None:
    from keras.src.backend.tensorflow.optimizer import TFOptimizer
    from keras.src.optimizers import LossScaleOptimizer
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    BaseOptimizer.apply = _apply_summed(BaseOptimizer.apply)
    BaseOptimizer._backend_apply_gradients = _conditions_across_replicas(BaseOptimizer._backend_apply_gradients)
    TFOptimizer._all_reduce_sum_gradients = _sum_once(TFOptimizer._all_reduce_sum_gradients)
    LossScaleOptimizer._tfdist_stock_tf_apply = LossScaleOptimizer._tf_apply
    LossScaleOptimizer._tf_apply = _scaled_apply
    LossScaleOptimizer.apply = _apply_summed(LossScaleOptimizer.apply)


MEND = Mend(
    name="gradients_used_before_the_sum",
    issue="keras-team/keras#20582",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="gradients are clipped, checked for infinities and accumulated before the sum over replicas; "
    "`gradient_accumulation_steps` and moving averages of weights fail",
    rows=(
        "clipvalue",
        "clipnorm",
        "global_clipnorm",
        "gradient_accumulation_steps=4",
        "exponential moving average of weights, written back",
        "an infinity on one replica: all skip the step and halve the scale",
    ),
)
