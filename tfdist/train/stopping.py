"""Callbacks that end a training: after a number of steps, or when the evaluator asks for it.

The evaluator asks by writing a small file. The file names the run, so that it ends no later run in the same folder.
"""

from __future__ import annotations

import dataclasses
import json
import os

from tfdist._log import get_logger
from tfdist.keras_compat.local_steps.stop_together import stop_on_every_worker
from tfdist.keras_compat.version import keras
from tfdist.saving import replaced
from tfdist.workers import exchange, is_chief

STOP_FILE = "stop.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopRequest:
    """The wish of the evaluator that the training ends.

    Attributes:
        run: name of the run.
        why: a phrase for the log.
    """

    run: str
    why: str

    def write(self, model_dir: str) -> None:
        """Writes the request for the training.

        Args:
            model_dir: folder of the model.
        """
        with replaced(os.path.join(model_dir, STOP_FILE)) as scratch, open(scratch, "w") as file:
            json.dump(dataclasses.asdict(self), file)


def read_stop_request(model_dir: str, *, run: str) -> StopRequest | None:
    """Returns the request of the evaluator, or None if there is none for this run.

    Args:
        model_dir: folder of the model.
        run: name of the run.

    Example:
        >>> import tempfile
        >>> from tfdist.train.stopping import StopRequest, read_stop_request
        >>> folder = tempfile.mkdtemp()
        >>> StopRequest(run="4f1c", why="3 evaluations without a better loss").write(folder)
        >>> read_stop_request(folder, run="4f1c").why
        '3 evaluations without a better loss'
        >>> read_stop_request(folder, run="77aa") is None
        True
    """
    try:
        with open(os.path.join(model_dir, STOP_FILE)) as file:
            found = StopRequest(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.run == run else None


class StopWhenAsked(keras().callbacks.Callback):  # type: ignore[misc]
    """Ends the training after the epoch in which the evaluator has asked for it; every worker uses the callback.

    Args:
        model_dir: folder of the model.
        run: name of the run.
    """

    def __init__(self, model_dir: str, *, run: str) -> None:
        super().__init__()
        self._model_dir, self._run = model_dir, run

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Ends the training on all workers if the chief finds a request."""
        strategy = self.model.distribute_strategy
        request = read_stop_request(self._model_dir, run=self._run) if is_chief(strategy) else None
        rows = exchange(strategy, [int(request is not None)], dtype="int64", to="look whether the training ends")
        if any(row[0] for row in rows):
            self.model.stop_training = True
            if request is not None:
                get_logger().info("the training ends after epoch %d, as the evaluator asks: %s", epoch + 1, request.why)


class StopAfterSteps(keras().callbacks.Callback):  # type: ignore[misc]
    """Ends the training after a number of steps of all epochs.

    Args:
        steps: the number of steps.
        steps_per_epoch: number of steps of an epoch.
    """

    def __init__(self, steps: int, *, steps_per_epoch: int) -> None:
        super().__init__()
        self._steps, self._steps_per_epoch = steps, steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Counts the steps of earlier epochs."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Ends the training after its last step."""
        if self._epoch * self._steps_per_epoch + batch + 1 >= self._steps:
            stop_on_every_worker(self.model)
