"""TrainedVariables: reads and restores all variables of a training, those too that its first step makes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.checkpoint.components import assign_values, read_values, variable_of
from tfdist.checkpoint.part import Part
from tfdist.keras_compat.local_steps.own_variables import OwnVariables
from tfdist.workers import count_workers, worker_index

METRICS = "metrics/"


class TrainedVariables:
    """The variables of a training on the replicas of this process.

    Args:
        collect: returns the variables that exist, by names that are the same after a restart.
        strategy: strategy of the training.
        replicas: knows the variables of replicas that train on their own.
    """

    def __init__(
        self,
        collect: Callable[[], Mapping[str, tf.Variable]],
        strategy: tf.distribute.Strategy,
        replicas: OwnVariables,
    ) -> None:
        self._collect, self._own = collect, replicas
        self._metrics: set[str] = set()
        self._replicas = strategy.num_replicas_in_sync
        self._first_replica = worker_index(strategy) * (self._replicas // count_workers(strategy))

    def read(self, *, kind: str = "") -> dict[str, np.ndarray]:
        """Returns the values by name; they are valid until the next step.

        Args:
            kind: beginning of the names of the variables.
        """
        variables = {name: one for name, one in self._collect().items() if name.startswith(kind)}
        with self._own.training():
            return read_values(variables, first_replica=self._first_replica, differing=self._own.differing())

    def restore(self, part: Part, *, kinds: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Assigns the values of a part, and returns the values whose variables do not exist yet.

        Args:
            part: the part; its notes say how many replicas had made it.
            kinds: beginnings of the names of the values to assign.
        """
        values = {name: value for name, value in part.values.items() if name.startswith(kinds)}
        variables = {name: one for name, one in self._collect().items() if name.startswith(kinds)}
        begin_anew = _changed_metrics(variables, values)
        _say_what_begins_anew(begin_anew)
        # The first step may make metrics that the snapshot does not have, if it has any.
        self._metrics = {_owner(name) for name in values if name.startswith(METRICS)} | begin_anew
        values = {name: value for name, value in values.items() if _owner(name) not in begin_anew}
        variables = {name: one for name, one in variables.items() if _owner(name) not in begin_anew}
        missing = self._assign(variables, values, former_replicas=part.notes["replicas"])
        if missing:
            get_logger().warning("the snapshot has no value for %s, which keep their values", ", ".join(missing))
        waiting = {variable_of(name) for name in values} - set(variables)
        # The arrays of a part in shared memory change when later parts are written.
        return {name: np.array(value) for name, value in values.items() if variable_of(name) in waiting}

    def restore_made(self, values: Mapping[str, np.ndarray], *, former_replicas: int, directory: str) -> None:
        """Assigns values to variables that the first step has made.

        Args:
            values: what `restore` returned.
            former_replicas: number of replicas that had made the part.
            directory: directory of the snapshots, for messages.

        Raises:
            ValueError: if a variable is missing.
        """
        names = {variable_of(name) for name in values}
        found = self._collect()
        variables = {name: one for name, one in found.items() if name in names}
        lost = names - set(variables)
        metrics = {_owner(name) for name in lost if name.startswith(METRICS)} | _changed_metrics(variables, values)
        made = {_owner(name) for name in found if name.startswith(METRICS)} if self._metrics else set()
        # Not of metrics that the program has no longer.
        _say_what_begins_anew((metrics & made) | (made - self._metrics))
        variables = {name: one for name, one in variables.items() if _owner(name) not in metrics}
        lost = {name for name in lost if not name.startswith(METRICS)}
        if lost:
            raise ValueError(
                f"expected variables for {', '.join(sorted(lost))} of the snapshot in {directory!r}, received none; "
                "go on with the same model, optimizer and options."
            )
        self._assign(variables, values, former_replicas=former_replicas)

    def fingerprint(self, *, kind: str, optimizers: str) -> str:
        """Returns a hash of the names, shapes and dtypes of variables.

        Args:
            kind: beginning of the names of the variables.
            optimizers: names of the classes of the optimizers.
        """
        described = [
            [name, str(variable.dtype.name), list(variable.shape)]
            for name, variable in self._collect().items()
            if name.startswith(kind)
        ]
        return hashlib.sha256(json.dumps([*described, optimizers]).encode()).hexdigest()[:16]

    def _assign(
        self, variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray], *, former_replicas: int
    ) -> list[str]:
        # Not while everybody sees the average: the values of the snapshot would be taken for set by the program.
        with self._own.training():
            return assign_values(
                variables,
                values,
                first_replica=self._first_replica,
                replicas=self._replicas,
                former_replicas=former_replicas,
                differing=self._own.differing(),
            )


def _owner(name: str) -> str:
    """Returns the beginning of the names of the variables of a metric; the whole name for other variables."""
    return name.rsplit("/", 2)[0] if name.startswith(METRICS) else name


def _changed_metrics(variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> set[str]:
    """Returns the metrics that have variables, but others than in the snapshot, or of other shapes."""
    shapes = {variable_of(name): value.shape for name, value in values.items() if name.startswith(METRICS)}
    owners = {_owner(name) for name in variables if name.startswith(METRICS)}
    own = {name: tuple(one.shape) for name, one in variables.items()}
    return {
        owner
        for owner in owners
        if {name: shape for name, shape in own.items() if _owner(name) == owner}
        != {name: shape for name, shape in shapes.items() if _owner(name) == owner}
    }


def _say_what_begins_anew(metrics: Collection[str]) -> None:
    if metrics:
        names = sorted(name.removeprefix(METRICS).rsplit(" ", 1)[0] for name in metrics)
        get_logger().warning(
            "the snapshot has no values for the metrics %s, which begin anew in this epoch", ", ".join(names)
        )
