"""ProgressLines: a line every few seconds that says how far a training is, where no progress bar can be shown."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tfdist.keras_compat.version import keras

SECONDS = 5.0
"""Time between two lines."""


def verbosity(*, chief: bool, is_terminal: bool, is_live: bool) -> int:
    """Returns Keras's `verbose` for `fit`.

    Args:
        chief: whether this is the chief; other workers show nothing.
        is_terminal: whether this process writes to a terminal.
        is_live: whether the launcher writes to a terminal, on which it shows the progress bar of the chief.

    Returns:
        0 shows nothing, 1 a progress bar, 2 one line for each epoch.

    Example:
        >>> verbosity(chief=True, is_terminal=False, is_live=True)
        1
        >>> verbosity(chief=True, is_terminal=False, is_live=False)
        2
    """
    if not chief:
        return 0
    return 1 if is_terminal or is_live else 2


def progress_line(*, step: int, steps: int, loss: float | None, step_seconds: float) -> str:
    """Returns the line that says how far a training is.

    Args:
        step: number of steps that are made.
        steps: number of all steps.
        loss: mean loss of the epoch so far; None if it is not known.
        step_seconds: mean time of a step, with what happens between steps.

    Example:
        >>> progress_line(step=120, steps=460, loss=0.12345, step_seconds=0.2)
        'step 120/460, loss 0.1235, 200 ms a step, ETA 0:01:08'
    """
    seconds = round((steps - step) * step_seconds)
    eta = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    shown_loss = "" if loss is None else f" loss {loss:.4f},"
    milliseconds = 1000 * step_seconds
    shown_time = f"{milliseconds:.{0 if milliseconds >= 100 else 1}f}"
    return f"step {step}/{steps},{shown_loss} {shown_time} ms a step, ETA {eta}"


class _Clock:
    """Times of this process. AutoResume keeps plain attributes of a callback only, and not such an object."""

    def __init__(self) -> None:
        # Step and time since which the time of a step is measured: the first step traces the graph.
        self.since: tuple[int, float] | None = None
        self.line_at = 0.0


class ProgressLines(keras().callbacks.Callback):  # type: ignore[misc]
    """Prints a line every few seconds: step, number of steps, loss, time of a step, and the time that is left.

    The loss is read for a line only, so that no other step waits for its result.

    Args:
        steps: number of steps of the training.
        steps_per_epoch: number of steps of an epoch.

    Example:
        >>> from tfdist.train.progress import ProgressLines
        >>> lines = ProgressLines(steps=10, steps_per_epoch=5)
        >>> lines.on_epoch_begin(1)
        >>> lines.on_train_batch_end(0, {"loss": 0.5})  # Prints nothing: five seconds have not passed.
    """

    def __init__(self, *, steps: int, steps_per_epoch: int) -> None:
        super().__init__()
        self._steps, self._steps_per_epoch = steps, steps_per_epoch
        self._epoch = 0
        self._clock = _Clock()
        # Keras 2 would convert the logs of each step to NumPy for this callback.
        self._supports_tf_logs = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Counts the steps of earlier epochs."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Prints a line if it is time."""
        step, now = self._epoch * self._steps_per_epoch + batch + 1, time.monotonic()
        if self._clock.since is None:
            self._clock.since, self._clock.line_at = (step, now), now + SECONDS
            return
        if now < self._clock.line_at:
            return
        self._clock.line_at = now + SECONDS
        since_step, since = self._clock.since
        seconds = (now - since) / max(1, step - since_step)
        print(progress_line(step=step, steps=self._steps, loss=_loss_in(logs), step_seconds=seconds), flush=True)


def _loss_in(logs: dict | None) -> float | None:
    value: Any = (logs or {}).get("loss")
    return None if value is None else float(np.mean(np.asarray(value)))
