"""Learning rates for large batches, and epochs as steps: pure functions of numbers."""

from __future__ import annotations

import math

RULES = ("linear", "sqrt")


def scale_learning_rate(
    learning_rate: float, *, global_batch_size: int, base_batch_size: int = 256, rule: str = "linear"
) -> float:
    """Returns the learning rate for a global batch, from the one that suits a smaller batch.

    The linear rule keeps the distance gone in an epoch (Goyal et al., 1706.02677), for SGD and LARS; the square-root
    rule keeps the variance of that distance (Krizhevsky, 1404.5997), for Adam and LAMB (1904.00962).

    Args:
        learning_rate: that suits base_batch_size.
        global_batch_size: records a step over all replicas.
        base_batch_size: records a step at which learning_rate was found good.
        rule: linear or sqrt.

    Raises:
        ValueError: for an unknown rule, a batch below 1, or a rate that is not above 0.

    Example:
        >>> from tfdist.optimizers import scale_learning_rate
        >>> scale_learning_rate(0.1, global_batch_size=8192)
        3.2
        >>> scale_learning_rate(0.1, global_batch_size=1024, rule="sqrt")
        0.2
    """
    if rule not in RULES:
        raise ValueError(f"expected rule to be one of {', '.join(RULES)}, received {rule!r}; choose one of them.")
    for name, size in (("global_batch_size", global_batch_size), ("base_batch_size", base_batch_size)):
        if size < 1:
            raise ValueError(f"expected {name} to be at least 1, received {size}; give the records of a step.")
    if not learning_rate > 0:
        raise ValueError(f"expected learning_rate to be above 0, received {learning_rate}; give another.")
    factor = global_batch_size / base_batch_size
    return learning_rate * (factor if rule == "linear" else math.sqrt(factor))


def steps_per_epoch(records: int, *, global_batch_size: int, drop_remainder: bool = False) -> int:
    """Returns how many steps go through all records once.

    Args:
        records: of an epoch.
        global_batch_size: records a step over all replicas.
        drop_remainder: whether a last batch that is not full is left out.

    Raises:
        ValueError: if there are not enough for a step.

    Example:
        >>> from tfdist.optimizers import steps_per_epoch
        >>> steps_per_epoch(60_000, global_batch_size=256)
        235
    """
    if global_batch_size < 1:
        raise ValueError(f"expected global_batch_size to be at least 1, received {global_batch_size}; give another.")
    steps = records // global_batch_size if drop_remainder else -(-records // global_batch_size)
    if steps < 1:
        raise ValueError(
            f"expected records for at least one step of {global_batch_size}, received {records}; take a smaller batch."
        )
    return steps


def epochs_to_steps(epochs: float, *, steps_per_epoch: float) -> int:
    """Returns the steps of a number of epochs, rounded.

    Args:
        epochs: need not be whole.
        steps_per_epoch: updates of an epoch; not whole where several batches make one.

    Raises:
        ValueError: for fewer than 0 epochs, and for no steps.

    Example:
        >>> from tfdist.optimizers import epochs_to_steps
        >>> epochs_to_steps(2.5, steps_per_epoch=235)
        588
    """
    if not epochs >= 0 or not steps_per_epoch > 0:
        raise ValueError(
            f"expected epochs of 0 or more and steps_per_epoch above 0, received {epochs} and {steps_per_epoch}; "
            "give others."
        )
    return round(epochs * steps_per_epoch)
