"""DistributedOptimizer: makes any Keras optimizer sum its gradients over replicas with tfdist.allreduce."""

from __future__ import annotations

from typing import Any

from tfdist.allreduce import AllReduceOptions
from tfdist.allreduce.hook import GradientHook
from tfdist.allreduce.traffic import Traffic
from tfdist.keras_compat.optimizers.attach import attach
from tfdist.keras_compat.optimizers.hooked import hook_of


def DistributedOptimizer(
    optimizer: Any, *, all_reduce: AllReduceOptions | None = None, backward_passes_per_step: int = 1
) -> Any:
    """Makes an optimizer send its gradients in packs while backpropagation is running; returns the optimizer.

    The gradients of each dtype are sent in packs, starting with the last layers, and several packs at a time. They are
    compressed if compression is set in `all_reduce` or in the strategy. The rest of a step is as on one device: loss
    unscaling, the check that gradients are finite, clipping, and the update.

    The optimizer keeps its class, options and state. If the strategy was made with compression, `compile` wraps the
    optimizer automatically.

    Saving and copying:

    - `pickle` and `copy.deepcopy` of the optimizer keep the wrapping.
    - A `.keras` file keeps the wrapping if it is loaded under a strategy of tfdist, except for a compression of the
      user's own class; a log line then asks to wrap the optimizer again. Without tfdist, Keras loads the plain
      optimizer from the same file.
    - `.h5` files and SavedModels do not keep the wrapping: wrap `model.optimizer` again after loading.
    - Only `tf.train.Checkpoint` stores the state of a compression, for all replicas of all workers.

    Args:
        optimizer: an optimizer of the Keras in use, for `compile` or for your own training loop, under the strategies
            one_device, mirrored and multi_worker_mirrored.
        all_reduce: bytes_per_pack and compression; None stands for the option of the strategy. The other options
            belong to create_strategy.
        backward_passes_per_step: number of backward passes whose gradients are averaged on each replica, before the
            averages are summed over replicas and the optimizer makes a step. Averaging converts sparse gradients to
            dense gradients. With the loss scaling of Keras 3, one device skips each pass whose gradients are not
            finite, and several replicas skip the whole step.

    Raises:
        ValueError: if the object is not an optimizer, or is a DistributedOptimizer already, or if the number of passes
            is below 1. At the first step, if the strategy is not supported, or if an option differs from the
            strategy's.

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
    return attach(optimizer, GradientHook(all_reduce, passes))


def gradient_traffic(optimizer: Any) -> Traffic:
    """Returns the number of bytes that the first replica of this worker has sent, counted only under compression.

    Args:
        optimizer: an optimizer that DistributedOptimizer has returned, or a LossScaleOptimizer around it.

    Raises:
        ValueError: if the optimizer was not wrapped in DistributedOptimizer.

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
