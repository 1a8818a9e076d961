"""The command-line flags of `tfdist train`, which other absl programs can use as well.

`GROUPS` has the names of the groups of flags.

Example:
    >>> from absl import flags
    >>> from tfdist.flags import GROUPS, define_flags, strategy_from_flags
    >>> GROUPS
    ('strategy', 'training', 'program')
    >>> values = flags.FlagValues()
    >>> define_flags(groups=("strategy",), flag_values=values)
    >>> _ = values(["program", "--strategy=one_device"])
    >>> strategy_from_flags(values).num_replicas_in_sync
    1
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from tfdist.flags import program, strategy, training
from tfdist.flags.strategy import (
    all_reduce_from_flags,
    optimizer_from_flags,
    staleness_from_flags,
    strategy_from_flags,
)

__all__ = [
    "GROUPS",
    "all_reduce_from_flags",
    "define_flags",
    "optimizer_from_flags",
    "staleness_from_flags",
    "strategy_from_flags",
]

GROUPS = ("strategy", "training", "program")


def define_flags(*, groups: str | Sequence[str] = GROUPS, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the absl flags of tfdist.

    Args:
        groups: one or several of "strategy" (strategy, devices, all-reduce, TPU), "training" (batch size, epochs,
            optimizer, precision, model folder) and "program" (model and data of `tfdist train`).
        flag_values: the flag values in which the flags are defined.

    Raises:
        ValueError: for an unknown group.

    Example:
        >>> from absl import flags
        >>> from tfdist.flags import define_flags
        >>> values = flags.FlagValues()
        >>> define_flags(groups=("strategy", "training"), flag_values=values)
        >>> _ = values(["program", "--epochs=3"])
        >>> values.strategy, values.epochs
        ('auto', 3)
    """
    groups = (groups,) if isinstance(groups, str) else tuple(groups)
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise ValueError(f"expected groups to be among {', '.join(GROUPS)}, received {', '.join(unknown)}.")
    if "strategy" in groups:
        strategy.define(flag_values)
    if "training" in groups:
        training.define(flag_values)
    if "program" in groups:
        program.define(flag_values)
