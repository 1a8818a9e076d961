"""Follows the snapshots of a training that another process writes, as an evaluator does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.checkpoint.components import assign_values, name_of, redistribute, variable_of
from tfdist.checkpoint.disk import Stored, folders_in
from tfdist.checkpoint.manifest import BrokenSnapshotError, Manifest, read_manifest
from tfdist.checkpoint.part import Part
from tfdist.checkpoint.run_name import path_of_run
from tfdist.keras_compat.resume.variables import build_optimizer, training_variables

_FIRST = "worker-0"
_Identity = tuple[str, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Followed:
    """A snapshot of the training that is followed.

    Attributes:
        run: name of the run. A training that begins anew in an emptied directory is another run.
        folder: folder of the snapshot, which may be removed at any time.
        finished: whether the training ended with this snapshot.
        part: the values and notes of all workers.
        left_out: steps of the older snapshots that were on the disk, and that are left out.

    Example:
        >>> from pathlib import Path
        >>> from tfdist.checkpoint import Followed
        >>> from tfdist.checkpoint.part import Part
        >>> Followed(run="", folder=Path("run"), finished=True, part=Part(step=7, values={}, notes={})).step
        7
    """

    run: str
    folder: Path
    finished: bool
    part: Part
    left_out: tuple[int, ...] = ()

    @property
    def step(self) -> int:
        """Number of steps since the beginning of the training."""
        return self.part.step


class SnapshotFollower:
    """Gives each complete snapshot of a directory once, or the newest one if there are several new ones.

    The follower neither writes to the directory nor locks it. The training may begin later, be interrupted and go on
    from an older snapshot, and remove old snapshots at any time.

    Args:
        directory: directory of the snapshots of a training, such as that of AutoResume.
        seen: run and step of the snapshots that are not to be given, since an earlier process has had them.

    Example:
        >>> import numpy as np, tempfile
        >>> from tfdist.checkpoint.disk import DiskTier
        >>> from tfdist.checkpoint.following import SnapshotFollower
        >>> from tfdist.checkpoint.part import Part, write_part
        >>> directory, buffer = tempfile.mkdtemp(), memoryview(bytearray(1000))
        >>> follower = SnapshotFollower(directory)
        >>> follower.next() is None
        True
        >>> size = write_part(Part(step=5, values={"model/0/kernel": np.ones(2)}, notes={}), buffer)
        >>> _ = DiskTier(directory, keep=2).write(5, {"worker-0": buffer[:size]}, model="ab12")
        >>> follower.next().step, follower.next() is None
        (5, True)
    """

    def __init__(self, directory: str | Path, *, seen: Iterable[tuple[str, int]] = ()) -> None:
        self._directory = Path(directory)
        self._seen = set(seen)
        # Snapshots that are not complete, of which the log says so once.
        self._broken: set[_Identity] = set()
        self._ended: tuple[_Identity, Part] | None = None

    @property
    def directory(self) -> str:
        """The directory."""
        return str(self._directory)

    @property
    def run(self) -> str:
        """Name of the run whose snapshots are in the directory; empty if none has begun."""
        try:
            return path_of_run(str(self._directory)).read_text()
        except OSError:
            return ""

    def next(self) -> Followed | None:
        """Returns the newest complete snapshot that has not been given yet; None if there is none."""
        run = self.run
        candidates = [(folder, one) for folder, one in self._complete() if (run, one.step) not in self._seen]
        for number, (folder, manifest) in enumerate(candidates):
            part = self._read(folder, manifest)
            if part is None:
                continue
            older = tuple(sorted({one.step for _, one in candidates[number + 1 :]} - {part.step}))
            self._seen.update((run, step) for step in (part.step, *older))
            return Followed(run=run, folder=folder, finished=manifest.finished, part=part, left_out=older)
        return None

    def ended(self) -> Part | None:
        """Returns the newest snapshot if the training ended with it; None if there is no such end."""
        for folder, manifest in self._complete():
            if not manifest.finished:
                return None
            identity = _identity(folder)
            if self._ended is None or self._ended[0] != identity:
                part = self._read(folder, manifest)
                if part is None or identity is None:
                    continue
                self._ended = (identity, part)
            return self._ended[1]
        return None

    def steps(self) -> list[int]:
        """Returns the steps of the complete snapshots, the newest first."""
        return [manifest.step for _, manifest in self._complete()]

    def _complete(self) -> Iterator[tuple[Path, Manifest]]:
        """Yields the snapshots whose files have the right sizes, the newest first."""
        try:
            folders = folders_in(self._directory)
        except OSError:
            return
        for folder in folders:
            if _identity(folder) in self._broken:
                continue
            try:
                yield folder, read_manifest(folder)
            except BrokenSnapshotError as error:
                self._leave_out(folder, error)

    def _read(self, folder: Path, manifest: Manifest) -> Part | None:
        """Returns the parts of all workers as one; None if the snapshot is broken, or is removed meanwhile."""
        stored = Stored(folder=folder, manifest=manifest)
        try:
            part = stored.part(_FIRST)
            values = dict(part.values)
            for name in manifest.parts:
                if name != _FIRST:
                    values.update(stored.part(name).values)
        except BrokenSnapshotError as error:
            self._leave_out(folder, error)
            return None
        return dataclasses.replace(part, values=values)

    def _leave_out(self, folder: Path, error: BrokenSnapshotError) -> None:
        identity = _identity(folder)
        # A snapshot that the training has removed meanwhile is not broken.
        if identity is not None:
            self._broken.add(identity)
            get_logger().warning("%s is not used: %s", folder, error)


def _identity(folder: Path) -> _Identity | None:
    """Returns what tells a folder from a later one of the same name; None if there is no folder."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return str(folder), found.st_ino, found.st_mtime_ns


def restore_model(model: Any, part: Part) -> None:
    """Assigns the weights of a snapshot to a model, and the state of its optimizer if that is the same optimizer.

    Args:
        model: a built and compiled Keras model on the replicas of this process.
        part: what a SnapshotFollower has given.

    Raises:
        ValueError: if the snapshot is of another model.

    Example:
        >>> import tempfile, numpy as np, tensorflow as tf
        >>> from tfdist.checkpoint import AutoResume, SnapshotFollower, restore_model
        >>> def made():
        ...     model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> directory, trained, other = tempfile.mkdtemp(), made(), made()
        >>> x = np.ones([8, 2])
        >>> _ = trained.fit(x, x[:, :1], verbose=0, shuffle=False, callbacks=[AutoResume(directory)])
        >>> restore_model(other, SnapshotFollower(directory).next().part)
        >>> all(np.array_equal(a, b) for a, b in zip(trained.get_weights(), other.get_weights()))
        True
    """
    build_optimizer(model)
    variables = training_variables(model)
    _check(_of_kind(variables, "model/"), part.values)
    replicas = part.notes["replicas"]
    for kind in ("model/", "optimizer/"):
        wanted = _of_kind(variables, kind)
        if not _differences(wanted, part.values):
            averages = _averages(wanted, part.values, replicas=replicas) if kind == "model/" else {}
            assign_values(
                wanted,
                {**part.values, **averages},
                first_replica=0,
                replicas=model.distribute_strategy.num_replicas_in_sync,
                former_replicas=replicas,
            )


def _of_kind(variables: Mapping[str, tf.Variable], kind: str) -> dict[str, tf.Variable]:
    return {name: variable for name, variable in variables.items() if name.startswith(kind)}


def _averages(
    variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray], *, replicas: int
) -> dict[str, np.ndarray]:
    """Returns the averages of the values that replicas had of their own, such as statistics of a batch normalization.

    On a single replica, Keras does not say for such a variable that TensorFlow averages it on several replicas.
    """
    found = {}
    for name, variable in variables.items():
        own = [values[one] for replica in range(replicas) if (one := name_of(name, replica)) in values]
        if own and variable.aggregation == tf.VariableAggregation.NONE:
            found[name] = redistribute(own, tf.VariableAggregation.MEAN, replicas=1)[0]
    return found


def _check(variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> None:
    unknown = {variable_of(name) for name in values if name.startswith("model/")} - set(variables)
    different = [*_differences(variables, values), *sorted(unknown)]
    if different:
        raise ValueError(
            f"expected a snapshot of this model, received one that differs in {', '.join(different[:3])}; give the "
            "evaluator the flags and the model of the training."
        )


def _differences(variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the names of the variables that have no value, or one of another shape."""
    shapes = {variable_of(name): tuple(value.shape) for name, value in values.items()}
    return [name for name, variable in variables.items() if shapes.get(name) != tuple(variable.shape)]
