"""Learning-rate scaling, and the conversion of epochs to steps: pure functions of numbers."""

from __future__ import annotations

import math

RULES = ("linear", "sqrt")


def scale_learning_rate(
    learning_rate: float, *, global_batch_size: int, base_batch_size: int = 256, rule: str = "linear"
) -> float:
    """Returns the learning rate for a global batch size, given the rate for another batch size.

    The linear rule multiplies the rate by global_batch_size / base_batch_size, so that the weights move equally far in
    an epoch. It is usual for SGD and LARS. The square-root rule multiplies the rate by the square root of that
    quotient, so that the variance of the movement stays the same. It is usual for Adam and LAMB.

    Args:
        learning_rate: learning rate for base_batch_size.
        global_batch_size: number of records in a step, over all replicas.
        base_batch_size: global batch size for which learning_rate was tuned.
        rule: "linear" or "sqrt".

    Raises:
        ValueError: for an unknown rule, a batch size below 1, or a rate that is not above 0.

    Source: Goyal et al. 2017 (1706.02677) for the linear rule; Krizhevsky 2014 (1404.5997) and, for LAMB, You et al.
    2019 (1904.00962) for the square-root rule.

    Example:
        >>> from tfdist.optimizers import scale_learning_rate
        >>> scale_learning_rate(0.1, global_batch_size=8192)
        3.2
        >>> scale_learning_rate(0.1, global_batch_size=1024, rule="sqrt")
        0.2
    """
    if rule not in RULES:
        raise ValueError(f"expected rule to be one of {', '.join(RULES)}, received {rule!r}.")
    for name, size in (("global_batch_size", global_batch_size), ("base_batch_size", base_batch_size)):
        if size < 1:
            raise ValueError(f"expected {name} to be at least 1, received {size}.")
    if not learning_rate > 0:
        raise ValueError(f"expected learning_rate to be above 0, received {learning_rate}.")
    factor = global_batch_size / base_batch_size
    return learning_rate * (factor if rule == "linear" else math.sqrt(factor))


def steps_per_epoch(records: int, *, global_batch_size: int, drop_remainder: bool = False) -> int:
    """Returns the number of steps that read every record once.

    Args:
        records: number of records in an epoch.
        global_batch_size: number of records in a step, over all replicas.
        drop_remainder: whether a last batch that is not full is dropped.

    Raises:
        ValueError: if the records are too few for one step.

    Example:
        >>> from tfdist.optimizers import steps_per_epoch
        >>> steps_per_epoch(60_000, global_batch_size=256)
        235
    """
    if global_batch_size < 1:
        raise ValueError(f"expected global_batch_size to be at least 1, received {global_batch_size}.")
    steps = records // global_batch_size if drop_remainder else -(-records // global_batch_size)
    if steps < 1:
        raise ValueError(
            f"expected records for at least one step of {global_batch_size}, received {records}; choose a smaller "
            "global_batch_size."
        )
    return steps


def epochs_to_steps(epochs: float, *, steps_per_epoch: float) -> int:
    """Returns the number of steps in a number of epochs, rounded.

    Args:
        epochs: number of epochs, whole or a fraction.
        steps_per_epoch: number of updates in an epoch; it may be a fraction if batches are accumulated for an update.

    Raises:
        ValueError: for fewer than 0 epochs, and for steps_per_epoch that is not above 0.

    Example:
        >>> from tfdist.optimizers import epochs_to_steps
        >>> epochs_to_steps(2.5, steps_per_epoch=235)
        588
    """
    if not epochs >= 0 or not steps_per_epoch > 0:
        raise ValueError(
            f"expected epochs of 0 or more and steps_per_epoch above 0, received {epochs} and {steps_per_epoch}."
        )
    return round(epochs * steps_per_epoch)
