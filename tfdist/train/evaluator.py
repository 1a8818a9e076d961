"""The evaluator of `tfdist train`: evaluates each new checkpoint and, at the end, the final model."""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf
from absl import flags

from tfdist._log import get_logger
from tfdist.input import distribute_files

_POLL_SECONDS = 0.5
_CLOCK_SLACK_SECONDS = 1.0


def evaluate_checkpoints(
    model: Any, strategy: Any, data: Any, values: flags.FlagValues, *, checkpoint: str, started: float
) -> int:
    """Evaluates every new checkpoint and returns 0 after the final model of this training has been evaluated.

    Args:
        model: the compiled model.
        strategy: the strategy of the evaluator.
        data: ImageData with the held-out images.
        values: the flags of `tfdist train`.
        checkpoint: the file that the training replaces after every epoch.
        started: time.time() at the start of this program; files that are older belong to an earlier training.

    Raises:
        TimeoutError: if no checkpoint appears for --evaluator_timeout_seconds.
    """
    final = os.path.join(values.model_dir, "model.keras")
    writer = tf.summary.create_file_writer(os.path.join(values.model_dir, "logs", "evaluator"))
    waiting_since, seen = time.monotonic(), 0.0
    # The clock of the file system may be behind the clock of this machine.
    started -= _CLOCK_SLACK_SECONDS
    with strategy.scope():
        # An optimizer without variables would not read its step count from a checkpoint.
        model.optimizer.build(model.trainable_variables)
    while True:
        is_final = _modification_time(final) >= started
        path = final if is_final else checkpoint
        if _modification_time(path) < started or _modification_time(path) == seen:
            if time.monotonic() - waiting_since > values.evaluator_timeout_seconds:
                raise TimeoutError(
                    f"expected a new checkpoint {checkpoint} within {values.evaluator_timeout_seconds:.0f} s, found "
                    "none; read the logs of the workers, or raise --evaluator_timeout_seconds."
                )
            time.sleep(_POLL_SECONDS)
            continue
        seen = _modification_time(path)
        model.load_weights(path)
        dataset = distribute_files(
            strategy, data.eval_files, parse_fn=data.parse, global_batch_size=values.global_batch_size, training=False
        )
        logs = model.evaluate(dataset, steps=dataset.steps_per_epoch, verbose=0, return_dict=True)
        step = int(model.optimizer.iterations.numpy())
        with writer.as_default():
            for name, value in logs.items():
                tf.summary.scalar(f"evaluation_{name}_vs_iterations", value, step=step)
        writer.flush()
        get_logger().info(
            "evaluated %s: accuracy %.4f, loss %.4f", os.path.basename(path), logs["accuracy"], logs["loss"]
        )
        if is_final:
            return 0
        waiting_since = time.monotonic()


def _modification_time(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except FileNotFoundError:
        return 0.0
