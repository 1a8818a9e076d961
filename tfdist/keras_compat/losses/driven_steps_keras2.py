"""Lets the steps that Keras 2's `fit`, `evaluate`, train_on_batch and test_on_batch run know their global batch.

A call of train_step in a loop of one's own is not concerned: only while Keras runs its train or test function, the
model's train_step and test_step are replaced.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.allreduce.update_hook import UpdateHook
from tfdist.keras_compat.losses.global_batch import global_batch
from tfdist.keras_compat.losses.not_finite import LossWatch, watch_losses
from tfdist.keras_compat.losses.rule import StepRule, rule_for
from tfdist.keras_compat.losses.weighting import part_of_global
from tfdist.keras_compat.mend import patch_method
from tfdist.keras_compat.optimizers.hooked import hook_of_local_steps
from tfdist.keras_compat.variables.state_stays_on_its_replica import average_state
from tfdist.keras_compat.version import keras_in_use


def drive_steps(model_class: Any) -> None:
    """Patches the methods that make the train and test functions of Keras 2's models.

    Args:
        model_class: Keras 2's Model.
    """
    watch_losses(model_class, dict.fromkeys(_loss_scale_optimizers(), "get_scaled_loss"))
    for kind in ("train", "test"):
        patch_method(model_class, f"make_{kind}_function", _driven(kind))


def _driven(kind: str) -> Callable[[Callable], Callable]:
    def replace(stock: Callable) -> Callable:
        def make_function(self: Any, force: bool = False) -> Any:
            made = getattr(self, f"{kind}_function")
            if made is not None and not force:
                return made
            strategy = self.distribute_strategy
            if strategy.num_replicas_in_sync == 1:
                return stock(self, force)
            driven = DrivenFunction(self, kind, lambda: stock(self, True))
            setattr(self, f"{kind}_function", driven)
            return driven

        return make_function

    return replace


def _loss_scale_optimizers() -> list[Any]:
    root = keras_in_use().engine.rsplit(".", 1)[0]
    module: Any = importlib.import_module(f"{root}.mixed_precision.loss_scale_optimizer")
    return [module.LossScaleOptimizer, module.LossScaleOptimizerV3]


def _can_report(model: Any) -> bool:
    """Returns whether a step of the model can call Python, which XLA and remote workers cannot."""
    local = (
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
    )
    return isinstance(model.distribute_strategy, local) and not model.jit_compile


class DrivenFunction:
    """The train or test function of a model on several replicas.

    Args:
        model: the Keras model.
        kind: "train" or "test".
        make: makes Keras's own function, stores it on the model, and returns it.
    """

    def __init__(self, model: Any, kind: str, make: Callable[[], Any]) -> None:
        self._model, self._kind, self._make = model, kind, make
        self._step = f"{kind}_step"
        self._rule = rule_for(model, self._step)
        self._function = make()
        self._is_traced = False
        self._watch = LossWatch(model.distribute_strategy) if kind == "train" and _can_report(model) else None

    def begin(self) -> None:
        """Begins a fit: a loss that is not finite is reported again."""
        if self._watch is not None:
            self._watch.begin()

    def __call__(self, iterator: Any) -> Any:
        """Runs the steps of one call and returns the logs of the last step.

        Raises:
            ValueError: if the program begins to divide its losses for all replicas after the first trace.
        """
        self.trace(iterator)
        try:
            with self._driven():
                logs = self._function(iterator)
        finally:
            if self._watch is not None:
                self._watch.report()
        self._rule.refuse_change()
        return logs

    def trace(self, iterator: Any) -> None:
        """Traces the function, which makes the variables that a step needs, if it has not been traced before.

        Args:
            iterator: the iterator that the first call will receive.
        """
        if not self._is_traced and hasattr(self._function, "get_concrete_function"):
            with self._driven():
                self._trace(iterator)

    @contextlib.contextmanager
    def _driven(self) -> Iterator[None]:
        """Gives the model a step that knows its global batch, within the context."""
        own = vars(self._model).get(self._step)
        hook = hook_of_local_steps(self._model) if self._kind == "train" else None
        step = DrivenStep(self._model, getattr(self._model, self._step), self._rule, self._watch, hook)
        step.take_seeds_from_this_thread()
        # object.__setattr__, because the model's own __setattr__ would track the step.
        object.__setattr__(self._model, self._step, step)
        try:
            yield
        finally:
            vars(self._model).pop(self._step, None)
            if own is not None:
                object.__setattr__(self._model, self._step, own)

    def _trace(self, iterator: Any) -> None:
        self._function.get_concrete_function(iterator)
        if self._rule.takes_change():
            self._function = self._make()
            setattr(self._model, f"{self._kind}_function", self)
        self._is_traced = True


class DrivenStep:
    """A train_step or test_step that knows its global batch, and returns its scalars as parts of the global value.

    Args:
        model: the Keras model.
        step: the step of the model.
        rule: rule of the step.
        watch: looks at the losses of the step; None for a test_step.
        alone: the hook of the optimizer, if replicas make the step without the others.
    """

    def __init__(
        self,
        model: Any,
        step: Callable[[Any], Any],
        rule: StepRule,
        watch: LossWatch | None = None,
        alone: UpdateHook | None = None,
    ) -> None:
        self._model, self._step, self._rule, self._watch, self._alone = model, step, rule, watch, alone
        self._seeds: Any = None

    def take_seeds_from_this_thread(self) -> None:
        """Lets the threads of the replicas draw seeds as the calling thread does.

        Keras draws a seed for each initializer without one from a generator that set_random_seed makes, for one thread
        only. A layer that is built in a step would have other initial weights than on one device.
        """
        self._seeds = vars(_seeds_of_thread()).get("generator")

    def __call__(self, data: Any) -> Any:
        """Runs the step of a replica."""
        if self._seeds is not None:
            _seeds_of_thread().generator = self._seeds
        with global_batch(data, self._rule, hook=self._alone) as batch:
            logs = self._logs_watched(data)
            if self._alone is None:
                average_state(batch)
            if not isinstance(logs, dict) or self._model.distribute_reduction_method not in ("auto", "sum"):
                return logs
            results = {id(getattr(metric, "_call_result", None)) for metric in self._model.metrics}
            self._model._tfdist_raw_logs = raw = {
                name for name, value in logs.items() if id(value) not in results and _is_scalar(value)
            }
            return {
                name: part_of_global(tf.cast(value, tf.float32) if _is_whole(value) else value, batch)
                if name in raw
                else value
                for name, value in logs.items()
            }

    def _logs_watched(self, data: Any) -> Any:
        if self._watch is None:
            return self._step(data)
        with self._watch.step() as losses:
            logs = self._step(data)
            # Keras increases the counter after the step.
            self._watch.look(losses, logs, tf.convert_to_tensor(self._model._train_counter) + 1)
        return logs


def _seeds_of_thread() -> Any:
    root = keras_in_use().engine.rsplit(".", 1)[0]
    return importlib.import_module(f"{root}.backend")._SEED_GENERATOR


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict) and tf.convert_to_tensor(value).shape.rank == 0


def _is_whole(value: Any) -> bool:
    return not tf.convert_to_tensor(value).dtype.is_floating
