"""Where reading is: a handful of plain values that mean the same on any cluster."""

from __future__ import annotations

import dataclasses

# Divides the usual batches, and can be dealt to 1, 2, 4 or 8 pipelines.
DEFAULT_CANONICAL_SHARDS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputState:
    """The step at which reading begins.

    Attributes:
        seed: of the order of records.
        epoch: counted from 0.
        step: of the epoch, counted from 0.
        canonical_shards: how many parts the data is dealt into, whatever the number of pipelines; None lets the batch
            decide. The order of records depends on it.
    """

    seed: int = 0
    epoch: int = 0
    step: int = 0
    canonical_shards: int | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "step"):
            if getattr(self, name) < 0:
                raise ValueError(f"expected {name} to be 0 or more, received {getattr(self, name)}; count from 0.")
        if self.canonical_shards is not None and self.canonical_shards < 1:
            raise ValueError(
                f"expected canonical_shards to be at least 1, received {self.canonical_shards}; leave it out."
            )

    def after(self, steps: int, *, steps_per_epoch: int) -> InputState:
        """Returns the state after so many more steps.

        Example:
            >>> from tfdist.input import InputState
            >>> InputState(seed=3, step=7).after(25, steps_per_epoch=10)
            InputState(seed=3, epoch=3, step=2, canonical_shards=None)
        """
        epochs, step = divmod(self.step + steps, steps_per_epoch)
        return dataclasses.replace(self, epoch=self.epoch + epochs, step=step)


def choose_canonical_shards(rows: int, num_pipelines: int, asked: int | None = None, *, most: int | None = None) -> int:
    """Returns into how many shards to deal the data.

    Each step takes as many rows from every shard, and every pipeline has as many shards: a divisor of the rows of a
    step and a multiple of the pipelines. It is the largest divisor up to 8 where the pipelines allow it, so that 1, 2,
    4 and 8 of them read the same global batches.

    Args:
        rows: of a step over all pipelines.
        num_pipelines: a divisor of the rows.
        asked: what the user wants.
        most: how many there can be, where that is at least the pipelines; None for any number.

    Raises:
        ValueError: if what is asked for does not divide the rows, or is no multiple of the pipelines.

    Example:
        >>> from tfdist.input.state import choose_canonical_shards
        >>> [choose_canonical_shards(64, pipelines) for pipelines in (1, 2, 4, 8, 16)]
        [8, 8, 8, 8, 16]
    """
    if asked is not None:
        if rows % asked or asked % num_pipelines:
            raise ValueError(
                f"expected canonical_shards to divide the {rows} records of a step and to be a multiple of the "
                f"{num_pipelines} input pipelines, received {asked}; choose such a number, or leave it out."
            )
        return asked
    divisors = [shards for shards in range(1, rows + 1) if rows % shards == 0]
    limit = DEFAULT_CANONICAL_SHARDS if most is None else min(DEFAULT_CANONICAL_SHARDS, max(most, 1))
    best = max(shards for shards in divisors if shards <= limit)
    suitable = [shards for shards in divisors if shards % num_pipelines == 0]
    return next((shards for shards in suitable if shards >= best), suitable[-1])
