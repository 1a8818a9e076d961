"""Records the first steps of a program that trains its models with `train_on_batch`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import trainer_class
from tfdist.verify.recording import Recorder, Verified, numbers_in


class BatchRecorder:
    """Replaces `train_on_batch` of all models by one that records, and ends the program after enough steps.

    Args:
        recorder: takes the steps.
        steps: number of steps of each model.
        replayed: batches to train on instead of the program's own data; None for the program's own data.
    """

    def __init__(self, recorder: Recorder, *, steps: int, replayed: list[Any] | None = None) -> None:
        self._recorder, self._steps, self._replayed = recorder, steps, replayed
        self._models: list[Any] = []
        self._counts: list[int] = []

    def install(self) -> None:
        """Patches `train_on_batch`; call it after create_strategy, whose mends patch it too."""
        trainer = trainer_class()
        trainer.train_on_batch = self._recording(trainer.train_on_batch)

    def finish(self) -> None:
        """Looks at the models after their last step."""
        for model in self._models:
            self._recorder.look_at(model)

    def _recording(self, stock: Callable) -> Callable:
        signature = inspect.signature(stock)

        @functools.wraps(stock)
        def train_on_batch(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            model = given.pop("self")
            # Programs with several models, such as a GAN, train each of them in turn.
            if self._counts and min(self._counts) >= self._steps:
                raise Verified
            number = self._number_of(model)
            if self._replayed is not None:
                x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(self._replayed[sum(self._counts)])
                given = {**given, "x": x, "y": y, "sample_weight": sample_weight}
            returned = stock(model, **given)
            self._counts[number] += 1
            self._recorder.add_step(model, _named(model, returned, prefix=f"model {number + 1} " if number else ""))
            return returned

        return train_on_batch

    def _number_of(self, model: Any) -> int:
        for number, known in enumerate(self._models):
            if known is model:
                return number
        self._recorder.begin(model, number=len(self._models) + 1)
        self._models.append(model)
        self._counts.append(0)
        return len(self._models) - 1


def _named(model: Any, returned: Any, *, prefix: str) -> dict[str, float]:
    """Returns the numbers that `train_on_batch` has returned, by name."""
    if isinstance(returned, dict):
        return {f"{prefix}{name}": value for name, value in numbers_in(returned).items()}
    values = returned if isinstance(returned, (list, tuple)) else [returned]
    # Keras 3 has one metric for all compiled metrics.
    metrics = [one for metric in model.metrics for one in getattr(metric, "metrics", None) or [metric]]
    names = [metric.name for metric in metrics]
    if len(names) != len(values):
        names = [f"value {i + 1}" for i in range(len(values))]
    return {f"{prefix}{name}": float(value) for name, value in zip(names, values, strict=True)}
