"""The evaluator of `tfdist train`: evaluates the weights of a training beside it, and keeps the best ones."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

from tfdist._log import get_logger
from tfdist.checkpoint.following import Followed, SnapshotFollower, restore_model
from tfdist.input import distribute_files
from tfdist.saving import save_model
from tfdist.train.evaluations import Evaluation, Evaluations, best_of, finite
from tfdist.train.stopping import StopRequest

BEST_FILE = "best.keras"
_POLL_SECONDS = 0.5


class Evaluator:
    """Evaluates each snapshot of a training once, or the newest one if several are new.

    Args:
        model: the compiled model.
        strategy: the strategy of the evaluator.
        data: ImageData with the held-out images.
        values: the flags of `tfdist train`.
        evaluations: the results so far.
        epochs: number of epochs of the training. A training that has ended with fewer epochs goes on.
    """

    def __init__(
        self, model: Any, strategy: Any, data: Any, values: flags.FlagValues, *, evaluations: Evaluations, epochs: int
    ) -> None:
        self._model, self._strategy, self._data, self._values = model, strategy, data, values
        self._evaluations, self._epochs = evaluations, epochs
        self._asked: str | None = None
        self._writer = tf.summary.create_file_writer(os.path.join(values.model_dir, "logs", "evaluator"))
        if not model.built:
            with strategy.scope():
                model(np.zeros([1, *data.image_shape], "float32"))

    def run(self, follower: SnapshotFollower) -> int:
        """Evaluates what a follower gives, and returns 0 at the end of the training.

        Args:
            follower: gives the snapshots.

        Raises:
            TimeoutError: if no new snapshot comes for --evaluator_timeout_seconds.
        """
        waiting_since, timeout = time.monotonic(), self._values.evaluator_timeout_seconds
        while True:
            snapshot = follower.next()
            if snapshot is not None:
                self._evaluate(snapshot)
                waiting_since = time.monotonic()
                continue
            is_late = time.monotonic() - waiting_since > timeout
            ended = follower.ended()
            if ended is not None and (is_late or ended.notes["stopped"] or ended.notes["epoch"] >= self._epochs):
                return 0
            if is_late:
                raise TimeoutError(
                    f"expected a new snapshot in {follower.directory!r} within {timeout:.0f} s, found none; read the "
                    "logs of the workers, or raise --evaluator_timeout_seconds."
                )
            time.sleep(_POLL_SECONDS)

    def _evaluate(self, snapshot: Followed) -> None:
        step = snapshot.step
        with self._strategy.scope():
            restore_model(self._model, snapshot.part)
        dataset = distribute_files(
            self._strategy,
            self._data.eval_files,
            parse_fn=self._data.parse,
            global_batch_size=self._values.global_batch_size,
            training=False,
        )
        logs = self._model.evaluate(dataset, steps=dataset.steps_per_epoch, verbose=0, return_dict=True)
        with self._writer.as_default():
            for name, value in logs.items():
                tf.summary.scalar(f"evaluation_{name}_vs_iterations", value, step=step)
        self._writer.flush()
        evaluation = Evaluation(
            run=snapshot.run,
            step=step,
            snapshot=snapshot.folder.name,
            time=time.time(),
            metrics=finite(logs),
            left_out=snapshot.left_out,
        )
        of_run = [*self._evaluations.of_run(snapshot.run), evaluation]
        metric = self._values.best_metric
        best = best_of(of_run, metric)
        is_best = best == len(of_run) - 1
        if is_best:
            # Saved before the line is written: after a kill between the two, the snapshot is evaluated again.
            save_model(self._model, os.path.join(self._values.model_dir, BEST_FILE))
        self._evaluations.add(evaluation)
        left_out = f"; {len(snapshot.left_out)} older not evaluated" if snapshot.left_out else ""
        get_logger().info(
            "evaluated step %d (%s): accuracy %.4f, loss %.4f%s%s",
            step,
            snapshot.folder.name,
            logs["accuracy"],
            logs["loss"],
            "; the best one so far" if is_best else "",
            left_out,
        )
        self._ask_to_stop(snapshot.run, len(of_run) - 1 - (-1 if best is None else best))

    def _ask_to_stop(self, run: str, since_best: int) -> None:
        """Ends the training if so many evaluations have brought nothing better."""
        patience = self._values.stop_patience
        if patience is None or since_best < patience or run == self._asked:
            return
        self._asked = run
        number = "1 evaluation" if since_best == 1 else f"{since_best} evaluations in a row"
        why = f"{number} without a better {self._values.best_metric}"
        StopRequest(run=run, why=why).write(self._values.model_dir)
        get_logger().info("asked the training to end: %s", why)
