"""TrainedVariables: reads and restores all variables of a training, those too that its first step makes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.checkpoint.components import assign_values, read_values, variable_of
from tfdist.checkpoint.part import Part
from tfdist.keras_compat.local_steps.own_variables import OwnVariables
from tfdist.workers import count_workers, worker_index


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
        variables = {name: one for name, one in self._collect().items() if name in names}
        lost = names - set(variables)
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
