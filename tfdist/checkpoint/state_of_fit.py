"""StateOfFit: the variables, callbacks, logs and files of a fit, as a part of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint.part import Part
from tfdist.checkpoint.trained_variables import TrainedVariables
from tfdist.keras_compat.local_steps.own_variables import OwnVariables
from tfdist.keras_compat.resume.attributes import digests, plain_state, set_plain_state
from tfdist.keras_compat.resume.files import go_on_with_file, position_of_file
from tfdist.keras_compat.resume.variables import build_optimizer, training_variables

_CALLBACKS = "callbacks/"
_LOGS = "logs/"
_METRICS = "metrics/"
_KINDS = ("model/", "optimizer/", "random/", "others/")


class StateOfFit:
    """Reads and restores everything that a fit changes, except the position in its data.

    Args:
        model: the model in fit.
        strategy: its strategy.
        callbacks: the callbacks whose state is part of the snapshot. What they contain when they have begun is not
            kept, so that what the program gives to a callback stays in force when the program changes it.
        directory: directory of the snapshots, for messages.
    """

    def __init__(
        self, model: Any, strategy: tf.distribute.Strategy, callbacks: Sequence[Any], *, directory: str
    ) -> None:
        self._model, self._directory = model, directory
        self._callbacks = dict(zip(_names_of(callbacks), callbacks, strict=True))
        self.callbacks_have_begun()
        self._own = OwnVariables([model])
        self._variables = TrainedVariables(lambda: training_variables(model), strategy, self._own)
        self.model_name = self._variables.fingerprint(kind="model/", optimizers=type(model.optimizer).__name__)
        """Fingerprint of the model and its optimizer."""

    def callbacks_have_begun(self) -> None:
        """Notes what the callbacks contain after their on_train_begin, and keeps only what changes from then on."""
        self._since = {name: digests(callback, f"{_CALLBACKS}{name}") for name, callback in self._callbacks.items()}

    def read_metrics(self) -> dict[str, np.ndarray]:
        """Returns a copy of the values of the metrics."""
        return {name: np.array(value) for name, value in self._variables.read(kind=_METRICS).items()}

    def read(
        self,
        *,
        step: int,
        position: Mapping[str, Any],
        logs: Mapping[str, Any],
        metrics: Mapping[str, np.ndarray] | None = None,
        is_finished: bool = False,
    ) -> Part:
        """Returns the state; the arrays are valid until the next step.

        Args:
            step: number of steps since the beginning of the training.
            position: notes about the position in the data.
            logs: what the last step has returned.
            metrics: what `read_metrics` has returned, if the metrics have been used for a validation since.
            is_finished: whether the training has ended.
        """
        arrays: dict[str, np.ndarray] = {f"{_LOGS}{name}": np.asarray(value) for name, value in logs.items()}
        states = {
            name: plain_state(callback, arrays, f"{_CALLBACKS}{name}", since=self._since[name])
            for name, callback in self._callbacks.items()
        }
        notes = {
            **position,
            "stopped": bool(self._model.stop_training),
            "is_finished": is_finished,
            "callbacks": states,
            "files": {name: position_of_file(callback) for name, callback in self._callbacks.items()},
            "model": self.model_name,
        }
        return Part(step=step, values={**self._variables.read(), **(metrics or {}), **arrays}, notes=notes)

    def go_on_with_files(self, part: Part) -> None:
        """Makes callbacks go on with the files of the interrupted fit; called before they open them.

        Args:
            part: what the fit goes on from.
        """
        for name, callback in self._callbacks.items():
            go_on_with_file(callback, part.notes["files"].get(name))

    def restore(self, part: Part, *, in_epoch: bool) -> dict[str, np.ndarray]:
        """Assigns values to variables and callbacks, and returns the values whose variables do not exist yet.

        Args:
            part: what `read` has returned in an earlier process.
            in_epoch: whether the fit goes on in the middle of an epoch; otherwise the metrics begin anew.
        """
        kinds = (*_KINDS, _METRICS) if in_epoch else _KINDS
        waiting = self._variables.restore(part, kinds=kinds)
        for name, callback in self._callbacks.items():
            set_plain_state(callback, part.notes["callbacks"].get(name, {}), part.values)
        return waiting

    def restore_finished(self, part: Part) -> None:
        """Restores the end of a training, without a step that would make the variables of the optimizer.

        Args:
            part: what `read` has returned in an earlier process.

        Raises:
            ValueError: if the model has no variables before its first step.
        """
        if not getattr(self._model, "built", True):
            raise ValueError(
                f"expected a model with variables, whose training in {self._directory!r} is finished, received one "
                "that is built in its first step; add an Input layer, or call model.build before fit."
            )
        build_optimizer(self._model)
        self._own.build(self._model.distribute_strategy)
        self.restore(part, in_epoch=part.notes["step"] > 0)

    def restore_made(self, values: Mapping[str, np.ndarray], *, former_replicas: int) -> None:
        """Assigns values to variables that the trace of the first step has made.

        Args:
            values: what `restore` has returned.
            former_replicas: number of replicas of the part.

        Raises:
            ValueError: if a variable is missing.
        """
        self._variables.restore_made(values, former_replicas=former_replicas, directory=self._directory)


def _names_of(callbacks: Sequence[Any]) -> list[str]:
    """Returns the name of each callback's class, with a number that tells callbacks of one class from each other."""
    classes = [type(callback).__name__ for callback in callbacks]
    return [f"{name} {classes[:number].count(name)}" for number, name in enumerate(classes)]


def logs_of(part: Part) -> dict[str, np.ndarray]:
    """Returns the logs that a part contains.

    Args:
        part: what `StateOfFit.read` has returned.
    """
    return {name[len(_LOGS) :]: np.array(value) for name, value in part.values.items() if name.startswith(_LOGS)}
