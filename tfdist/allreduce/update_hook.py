"""UpdateHook: what the adapters of keras_compat need to know of an object that stands between gradients and update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.options_of import is_of_tfdist

_SUPPORTED = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)


class UpdateHook(tf.__internal__.tracking.AutoTrackable):
    """State that is attached to an optimizer, and that receives its gradients before each update.

    Attributes:
        program: the name by which users know the hook, for messages.
        passes: number of backward passes per update.
        omission_is_told: whether the log has said that files with the optimizer omit the hook.
    """

    program = "DistributedOptimizer"
    passes = 1
    omission_is_told = False

    @property
    def calls_update_later(self) -> bool:
        """Whether `run` decides when the update is called. Otherwise it calls the update exactly once."""
        return False

    @property
    def counts_alone(self) -> bool:
        """Whether replicas make steps without the others, so that nothing should be summed in each step."""
        return False

    def attached(self, optimizer: Any) -> None:
        """Is called when the hook has been attached.

        Args:
            optimizer: the optimizer.
        """

    def trains(self, statistics_of: Callable[[], list[tf.Variable]]) -> None:
        """Is called before the first step of fit.

        Args:
            statistics_of: returns the running statistics of the model.
        """

    @property
    def lets_replicas_differ(self) -> bool:
        """Whether weights and slots differ between replicas."""
        return False

    @property
    def trained(self) -> list[tf.Variable]:
        """The weights that the steps have trained, if they may differ between replicas; frozen ones too."""
        return []

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which all replicas have the values that evaluation, saving and callbacks see."""
        return contextlib.nullcontext()

    def own(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which each replica has the values with which its training goes on."""
        return contextlib.nullcontext()

    def built(self, strategy: Any, variables: Sequence[Any]) -> None:
        """Makes the variables that do not depend on the gradients; called when the optimizer has been built.

        A step that makes variables would be traced twice: once to find them, and once without them.

        Args:
            strategy: the strategy, in whose cross-replica context the optimizer was built.
            variables: the variables of the optimizer.
        """

    def build_before_steps(self, strategy: Any, variables: Sequence[Any]) -> None:
        """Makes the state that the first step would make, for a training that is finished and is restored.

        Args:
            strategy: the strategy of the variables.
            variables: the trained variables, in the order of the steps.
        """

    def begin_training(self) -> None:
        """Gives each replica the values with which its training goes on."""

    def end_training(self) -> None:
        """Gives all replicas the values that a program sees, until training goes on."""

    def last_meeting(self) -> int | None:
        """Returns after which step all replicas have last met, or None; called outside of functions."""
        return None

    def total(self, part: tf.Tensor) -> tf.Tensor:
        """Returns the number that a step divides by, such as rows of all replicas; called in replica context.

        Args:
            part: the number of this replica, a scalar.
        """
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, part)

    def run(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        scale: Any,
        update: Callable[[list[Any]], Any],
        *,
        known: Sequence[Any] = (),
        rows: Any = None,
    ) -> Any:
        """Makes a step of an optimizer; called in replica context.

        Args:
            gradients: the gradients of this replica, whose sum over replicas is the gradient of the global batch.
            variables: the variable of each gradient.
            scale: the loss scale that the gradients contain, or None.
            update: takes the gradients with which to update.
            known: all variables that the optimizer was built with, if the optimizer has a list of them.
            rows: number of rows of this replica, a float scalar; None if it is not known.
        """
        raise NotImplementedError

    def recipe(self) -> tuple[Callable[..., UpdateHook], tuple[Any, ...]]:
        """Returns a function and its arguments, which make an equal hook without state for a copy of the optimizer."""
        raise NotImplementedError

    def description(self) -> dict[str, Any] | None:
        """Returns the options of the hook as values of JSON, for files with the optimizer; None if files omit it."""
        return None

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        # A SavedModel is used for prediction, and its graph cannot contain the values of each replica.
        return {} if save_type == "savedmodel" else super()._trackable_children(save_type, **options)


def check_strategy(strategy: tf.distribute.Strategy, program: str) -> None:
    """Raises ValueError if a strategy does not support hooks.

    Args:
        strategy: the strategy of a step.
        program: name of the hook, for the message.
    """
    if tf.distribute.has_strategy() and not isinstance(strategy, _SUPPORTED):
        raise ValueError(
            "expected one of the strategies one_device, mirrored and multi_worker_mirrored for "
            f"{program}, received {type(strategy).__name__}; use the optimizer without it."
        )
    if strategy.num_replicas_in_sync > 1 and not is_of_tfdist(strategy):
        raise ValueError(
            f"expected a strategy of tfdist for {program}, received {type(strategy).__name__} itself; "
            "make it with tfdist.create_strategy."
        )


def is_supported(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether `check_strategy` accepts a strategy of tfdist.

    Args:
        strategy: any strategy.
    """
    return isinstance(strategy, _SUPPORTED) and is_of_tfdist(strategy)


def variable_key(variable: Any) -> Any:
    """Returns a value that identifies a variable.

    Args:
        variable: variable of TensorFlow or of Keras.
    """
    # Keras 2 gives its optimizers different objects for the same variable inside and outside of a replica.
    return getattr(variable, "_unique_id", None) or id(variable)
