"""averaged: shows a loop of one's own what evaluation in fit sees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tfdist.keras_compat.optimizers.hooked import hook_of, hooks_that_train


@contextlib.contextmanager
def averaged(subject: Any) -> Iterator[None]:
    """Gives all replicas the weights that evaluation sees, within the context; then each gets its own ones back.

    `evaluate`, `predict`, `get_weights` and `save` of a model need no such context. It is for loops of your own that
    read the variables, call the model, or write a checkpoint between the steps of LocalSGD, DPSGD or ChocoSGD. Every
    worker has to enter it. Weights that are set within the context stay on all replicas.

    Args:
        subject: an optimizer of LocalSGD, DPSGD or ChocoSGD, or a model that it trains.

    Raises:
        ValueError: if the replicas do not train on their own.

    Example:
        >>> import tensorflow as tf, tfdist
        >>> from tfdist.averaging import LocalSGD, averaged
        >>> strategy = tfdist.create_strategy("mirrored", devices=2)
        >>> with strategy.scope():
        ...     weight = tf.Variable(0.0)
        ...     optimizer = LocalSGD(tf.keras.optimizers.SGD(0.5), every=8, average=["weights"])
        >>> @tf.function
        ... def step():
        ...     def replica():
        ...         number = tf.distribute.get_replica_context().replica_id_in_sync_group
        ...         optimizer.apply_gradients([(tf.cast(number, tf.float32), weight)])
        ...     strategy.run(replica)
        >>> step()
        >>> [float(one) for one in strategy.experimental_local_results(weight)]
        [0.0, -1.0]
        >>> with averaged(optimizer):
        ...     [float(one) for one in strategy.experimental_local_results(weight)]
        [-0.5, -0.5]
    """
    own = hook_of(subject)
    hooks = hooks_that_train(subject) if own is None else [own]
    if not any(hook.lets_replicas_differ for hook in hooks):
        raise ValueError(
            "expected an optimizer of LocalSGD, DPSGD or ChocoSGD, or a model that it trains, received "
            f"{type(subject).__name__}; with other optimizers all replicas have the same weights."
        )
    with contextlib.ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook.shown())
        yield
