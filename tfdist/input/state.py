"""Input position: plain values, valid on any cluster."""

from __future__ import annotations

import dataclasses

# Divides the usual batch sizes, and can be shared by 1, 2, 4 or 8 pipelines.
DEFAULT_CANONICAL_SHARDS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputState:
    """The position at which training or evaluation begins to read.

    Attributes:
        seed: seed of the order of records, 0 or more.
        epoch: number of the epoch, counted from 0.
        step: number of the step in that epoch, counted from 0.
        canonical_shards: number of shards that the records are divided into, on any number of input pipelines. The
            order of records depends on it. None lets distribute_files choose it from the batch size, the number of
            pipelines and, with the policy `files`, the number of files.

    Example:
        >>> from tfdist.input import InputState
        >>> InputState(seed=3, epoch=2)
        InputState(seed=3, epoch=2, step=0, canonical_shards=None)
    """

    seed: int = 0
    epoch: int = 0
    step: int = 0
    canonical_shards: int | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "step"):
            if getattr(self, name) < 0:
                raise ValueError(f"expected {name} to be 0 or more, received {getattr(self, name)}.")
        if self.canonical_shards is not None and self.canonical_shards < 1:
            raise ValueError(f"expected canonical_shards to be at least 1 or None, received {self.canonical_shards}.")

    def after(self, steps: int, *, steps_per_epoch: int) -> InputState:
        """Returns the position after more steps.

        Args:
            steps: number of steps made since this position.
            steps_per_epoch: number of steps of an epoch, such as `dataset.steps_per_epoch`.

        Raises:
            ValueError: if steps is negative or steps_per_epoch is less than 1.

        Example:
            >>> from tfdist.input import InputState
            >>> InputState(seed=3, step=7).after(25, steps_per_epoch=10)
            InputState(seed=3, epoch=3, step=2, canonical_shards=None)
        """
        if steps < 0 or steps_per_epoch < 1:
            raise ValueError(
                f"expected steps of 0 or more and steps_per_epoch of at least 1, received {steps} and "
                f"{steps_per_epoch}."
            )
        epochs, step = divmod(self.step + steps, steps_per_epoch)
        return dataclasses.replace(self, epoch=self.epoch + epochs, step=step)


def choose_canonical_shards(rows: int, num_pipelines: int, asked: int | None = None, *, most: int | None = None) -> int:
    """Returns the number of shards to divide the records into.

    Each step takes the same number of records from every shard, and every pipeline reads the same number of shards.
    A suitable number of shards therefore divides the rows of a step and is a multiple of the number of pipelines. The
    largest divisor of the rows up to 8 is chosen if it is suitable, so that 1, 2, 4 and 8 pipelines read the same
    global batches. Otherwise the next larger suitable number is chosen; if there is none, the largest suitable number.

    Args:
        rows: number of records that all pipelines together read in a step.
        num_pipelines: number of input pipelines; it divides `rows`.
        asked: number of shards that the user asks for, or None.
        most: largest possible number of shards, such as the number of files; `num_pipelines` shards are allowed in any
            case. None sets no limit.

    Raises:
        ValueError: if `asked` does not divide `rows` or is not a multiple of `num_pipelines`.

    Example:
        >>> from tfdist.input.state import choose_canonical_shards
        >>> [choose_canonical_shards(64, pipelines) for pipelines in (1, 2, 4, 8, 16)]
        [8, 8, 8, 8, 16]
    """
    if asked is not None:
        if rows % asked or asked % num_pipelines:
            raise ValueError(
                f"expected canonical_shards to divide the {rows} records of a step and to be a multiple of the "
                f"{num_pipelines} input pipelines, received {asked}."
            )
        return asked
    divisors = [shards for shards in range(1, rows + 1) if rows % shards == 0]
    limit = DEFAULT_CANONICAL_SHARDS if most is None else min(DEFAULT_CANONICAL_SHARDS, max(most, 1))
    best = max(shards for shards in divisors if shards <= limit)
    suitable = [shards for shards in divisors if shards % num_pipelines == 0]
    if most is not None:
        suitable = [shards for shards in suitable if shards <= max(most, num_pipelines)]
    return next((shards for shards in suitable if shards >= best), suitable[-1])
