"""Reads from the counters of the sums of gradients whether this worker waits for other workers."""

from __future__ import annotations

import tensorflow as tf

from tfdist.allreduce.deadline import deadline_of


class Waiting:
    """What this worker waits for.

    Args:
        strategy: any strategy. Only tfdist's multi-worker strategy has counters.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._deadline = deadline_of(strategy)
        # Reading a variable of a GPU would wait for the step that runs there.
        self._reads_sums = self._deadline is not None and not any(
            "GPU" in device for device in strategy.extended.worker_devices
        )

    def now(self) -> tuple[str | None, bool]:
        """Returns what this worker waits for, as in Standing, and whether the workers count their batches."""
        if self._deadline is None:
            return None, False
        try:
            batches_begun, batches_ended = self._deadline.batches()
            if batches_begun != batches_ended:
                return "batch", True
            if not self._reads_sums:
                return None, batches_begun > 0
            begun, ended = self._deadline.counts()
        except (tf.errors.OpError, RuntimeError):
            return None, False
        return ("sum" if begun != ended else "" if any(begun) else None), batches_begun > 0
