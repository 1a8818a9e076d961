"""LocalSGD: lets every replica train on its own for some steps, and then averages the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfdist.allreduce import AllReduceOptions
from tfdist.averaging.local_hook import LocalHook
from tfdist.averaging.meeting import PARTS
from tfdist.averaging.outer import Average, BlockMomentum, Nesterov, OuterRule
from tfdist.averaging.schedule import Meetings
from tfdist.keras_compat.local_steps.prepare import prepare_local_steps
from tfdist.keras_compat.optimizers.attach import attach

_NAMED = {"average": Average, "block_momentum": BlockMomentum, "nesterov": Nesterov}


def LocalSGD(
    optimizer: Any,
    *,
    every: int | Callable[[Any], Any] = 16,
    start_step: int = 0,
    outer: str | OuterRule = "average",
    average: Sequence[str] = PARTS,
    seen: str = "average",
    all_reduce: AllReduceOptions | None = None,
    overlap: bool = False,
) -> Any:
    """Makes an optimizer update each replica with the replica's own gradients; returns the optimizer.

    After `every` steps the replicas meet: their weights are combined by the outer rule, and the slots of the optimizer
    and the running statistics of BatchNormalization are averaged. Between meetings nothing is sent between the
    replicas. In fit, a replica counts by the number of rows that it has trained on since the last meeting. In a loop of
    your own all replicas count alike; divide the loss by the global batch, as without LocalSGD.

    Between meetings each replica has variables of its own. `evaluate`, `predict`, saving, and the callbacks of epochs
    see the average of the replicas; training goes on with the variables that each replica had.

    Args:
        optimizer: an optimizer of the Keras in use, under the strategies one_device, mirrored and
            multi_worker_mirrored.
        every: number of steps from one meeting to the next, or a function of the number of the step (an int64 tensor
            that counts from 0), which returns this number, a whole one. A step at which it returns less than 1
            fails.
        start_step: number of synchronous steps at the beginning, in which gradients are summed as usual: post-local
            SGD.
        outer: "average", "block_momentum", "nesterov" (each with its default options), or a rule of tfdist.averaging.
        average: what the replicas combine, out of "weights", "slots" and "statistics". "weights" is needed.
        seen: which weights evaluation, saving and callbacks see between meetings: "average", or "chief" for those of
            the first replica.
        all_reduce: bytes_per_pack and compression of what is sent at a meeting; None for those of the strategy. With a
            compression the changes of the weights since the last meeting are sent compressed; slots and statistics are
            not compressed.
        overlap: whether the sums of the weights are sent while the next local steps go on, and used at the next
            meeting. Each replica then keeps the changes that it has made meanwhile. It needs the native transport
            between workers, and an `average` without "slots", because Adam's would become negative.

    Raises:
        ValueError: if an argument is out of its range, or if the optimizer has options that need all replicas in every
            step: use_ema, a loss scale, or Keras 2's legacy optimizers.

    Source: Stich 2018 (1805.09767); Lin et al. 2018 (1808.07217) for post-local SGD; Shen et al. 2019 (1906.12043) for
    overlap; the classes of tfdist.averaging name the papers of the outer rules.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.averaging import LocalSGD, Nesterov
        >>> optimizer = LocalSGD(tf.keras.optimizers.SGD(0.1), every=8, outer=Nesterov(rate=0.7, momentum=0.9))
        >>> isinstance(optimizer, tf.keras.optimizers.SGD)
        True
    """
    rule: Any = _NAMED[outer]() if isinstance(outer, str) and outer in _NAMED else outer
    if isinstance(rule, type) or not all(hasattr(rule, name) for name in ("slots", "keeps_own", "part", "next")):
        raise ValueError(
            f"expected outer to be one of {', '.join(_NAMED)}, or a rule of tfdist.averaging, received {outer!r}."
        )
    unknown = set(average) - set(PARTS)
    if isinstance(average, str) or unknown or "weights" not in average:
        raise ValueError(
            f"expected average to be a list out of {', '.join(PARTS)} that contains weights, received {average!r}."
        )
    if seen not in ("average", "chief"):
        raise ValueError(f"expected seen to be average or chief, received {seen!r}.")
    if overlap and "slots" in average:
        raise ValueError(
            "expected average without slots for LocalSGD with overlap=True, received "
            f"{', '.join(average)}; take average=('weights', 'statistics')."
        )
    hook = LocalHook(Meetings(every=every, start_step=start_step), rule, tuple(average), seen, all_reduce, overlap)
    prepare_local_steps(optimizer, LocalHook.program)
    return attach(optimizer, hook)
