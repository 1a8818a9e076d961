"""DistributedOptimizer: any optimizer, with the gradients' way from replica to replica in our hands."""

from __future__ import annotations

from typing import Any

from tfdist.allreduce import AllReduceOptions
from tfdist.allreduce.path import GradientPath, Traffic
from tfdist.keras_compat.optimizers.attach import Hook, attach, hook_of


def DistributedOptimizer(
    optimizer: Any, *, all_reduce: AllReduceOptions | None = None, backward_passes_per_step: int = 1
) -> Any:
    """Makes an optimizer send its gradients in packs while backprop goes on, compressed if asked for; returns it.

    The gradients of each dtype go in packs, those of the last layers first, several on the wire at a time. Then come,
    as on one device, unscaling, the check that they are finite, clipping and the update. The optimizer stays what
    it was: its class, options and state, and the files that it is saved in. What a compression keeps on each replica is
    in `tf.train.Checkpoint`, for all replicas of all workers.

    Args:
        optimizer: of the Keras in use, to go into `compile` or a loop of one's own, under the strategies one_device,
            mirrored and multi_worker_mirrored.
        all_reduce: bytes_per_pack and compression; the other options are the strategy's, given to create_strategy. What
            is left out is the strategy's too.
        backward_passes_per_step: passes whose gradients are averaged on each replica before they are summed and the
            optimizer makes a step. Averaged, sparse gradients are dense. On one device Keras 3's loss scaling looks at
            each pass, elsewhere at each step.

    Raises:
        ValueError: for what is no optimizer, is distributed already, a number of passes below 1; at the first step for
            another strategy, and for an option that is the strategy's.

    Source: Sergeev and Del Balso 2018 (1802.05799) for fused and local gradients; Li et al. 2020 (2006.15704) for packs
    in the order of backprop.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist import AllReduceOptions
        >>> from tfdist.optimizers import DistributedOptimizer
        >>> optimizer = DistributedOptimizer(tf.keras.optimizers.SGD(), all_reduce=AllReduceOptions(compression="fp16"))
        >>> isinstance(optimizer, tf.keras.optimizers.SGD)
        True
    """
    passes = backward_passes_per_step
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(
            f"expected backward_passes_per_step to be a whole number, at least 1, received {passes!r}; "
            "leave it out for a step after every pass."
        )
    return attach(optimizer, Hook(GradientPath(all_reduce), passes))


def gradient_traffic(optimizer: Any) -> Traffic:
    """Returns how many bytes the first replica of this worker has sent, where gradients are compressed.

    Args:
        optimizer: that DistributedOptimizer has returned, or a LossScaleOptimizer around it.

    Raises:
        ValueError: for another optimizer.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.optimizers import DistributedOptimizer, gradient_traffic
        >>> gradient_traffic(DistributedOptimizer(tf.keras.optimizers.SGD())).steps
        0
    """
    hook = hook_of(optimizer)
    if hook is None:
        raise ValueError(f"expected a distributed optimizer, received {type(optimizer).__name__}; wrap it first.")
    return hook.path.traffic()
