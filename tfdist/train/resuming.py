"""The snapshots of `tfdist train`: goes on from them by default, as the flag --resume says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import flags

from tfdist._log import get_logger
from tfdist.checkpoint.auto_resume import AutoResume
from tfdist.checkpoint.following import SnapshotFollower
from tfdist.checkpoint.memory import MemoryTier
from tfdist.checkpoint.run_name import run_of
from tfdist.cluster.launched import launched
from tfdist.train.callbacks import StopIfNotFinite
from tfdist.train.length import Length, check_end
from tfdist.workers import agree, is_chief, worker_index


class CheckedAutoResume(AutoResume):
    """AutoResume that takes no snapshot of a loss or of weights that are not finite.

    Without the check, a training that is started again would go on with broken weights.

    Args:
        directory: directory of the snapshots.
        guard: looks at the loss and the weights before each snapshot; None for no check.
        is_new: whether the program has made the directory, where nobody expects a snapshot.
        **options: the options of AutoResume.
    """

    def __init__(self, directory: str, *, guard: StopIfNotFinite | None, is_new: bool = False, **options: Any) -> None:
        super().__init__(directory, **options)
        self._guard = guard
        self._is_new = is_new

    def training_begins(self) -> None:
        """Writes to the log that there is no snapshot, unless that is plain."""
        if not self._is_new:
            super().training_begins()

    def before_snapshot(self, logs: Mapping[str, Any]) -> None:
        """Looks at the loss and the weights."""
        if self._guard is not None:
            self._guard.look(logs)


def auto_resume(
    values: flags.FlagValues, *, strategy: tf.distribute.Strategy, length: Length, guard: StopIfNotFinite | None
) -> tuple[AutoResume, str]:
    """Returns the callback that keeps the snapshots, and the name of the run; every worker calls the function.

    Args:
        values: the flags of `tfdist train`.
        strategy: strategy of the training.
        length: length of the training.
        guard: looks at the loss and the weights before each snapshot, or None.

    Raises:
        ValueError: if --resume does not allow what is in the directory.
        OSError: if another worker has failed.
    """
    directory = snapshots_in(values.model_dir)
    # A restart by the launcher belongs to the training that it interrupts, and goes on whatever the flag says.
    started = launched()
    if values.resume != "auto" and (started is None or started.attempt == 0):
        check_resume(values.resume, directory, step=_newest_step(directory, strategy))
    is_new = not os.path.exists(directory)
    ended = SnapshotFollower(directory).ended() if is_chief(strategy) else None
    failure: Exception | None = None
    try:
        if ended is not None:
            check_end(ended_at=ended.step, stopped=bool(ended.notes.get("stopped")), length=length, directory=directory)
    except ValueError as error:
        failure = error
    agree(strategy, [], failure=failure, to="compare the length of the training with the snapshots")
    # `agree` has brought the workers together: none of them makes the directory before all have looked.
    os.makedirs(directory, exist_ok=True)
    callback = CheckedAutoResume(
        directory,
        guard=guard,
        is_new=is_new,
        every_steps=values.snapshot_every_steps,
        every_seconds=values.snapshot_every_seconds,
    )
    return callback, run_of(directory)


def snapshots_in(model_dir: str) -> str:
    """Returns the directory of the snapshots in a folder of a model.

    Args:
        model_dir: folder of the model.
    """
    return os.path.join(model_dir, "snapshots")


def check_resume(resume: str, directory: str, *, step: int | None) -> None:
    """Raises an error if the flag --resume does not allow what is in the directory.

    Args:
        resume: "auto", "never" or "require".
        directory: directory of the snapshots.
        step: step of the newest snapshot, or None if there is none.

    Raises:
        ValueError: if there is a snapshot with "never", or none with "require".

    Example:
        >>> from tfdist.train.resuming import check_resume
        >>> check_resume("auto", "run/snapshots", step=None)
        >>> check_resume("require", "run/snapshots", step=None)
        Traceback (most recent call last):
        ...
        ValueError: expected a snapshot in 'run/snapshots' with --resume=require, received none; ...
    """
    if resume == "never" and step is not None:
        raise ValueError(
            f"expected no snapshots in {directory!r} with --resume=never, received that of step {step}; choose another "
            "--model_dir, or remove the directory to lose them."
        )
    if resume == "require" and step is None:
        raise ValueError(
            f"expected a snapshot in {directory!r} with --resume=require, received none; correct --model_dir, or leave "
            "--resume out to begin a new training."
        )


def _newest_step(directory: str, strategy: tf.distribute.Strategy) -> int | None:
    """Returns the step of the newest snapshot on disk or in the memory of any host; None if there is none."""
    steps = [-1]
    failure: Exception | None = None
    follower = SnapshotFollower(directory)
    try:
        steps += follower.steps()
        # Without a name, no run has begun here that could have left anything in memory.
        memory = MemoryTier(directory, worker=worker_index(strategy)) if follower.run else None
        if memory is not None:
            in_memory = [part.step for part in memory.parts()]
            steps += in_memory
            if in_memory:
                memory.close()
            else:
                memory.clear()
    except ValueError as error:
        failure = error
    except OSError as error:
        get_logger().info("no shared memory: %s", error)
    rows = agree(strategy, [max(steps)], failure=failure, to=f"look for snapshots in {directory!r}")
    newest = max(row[0] for row in rows)
    return newest if newest >= 0 else None
