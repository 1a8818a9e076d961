"""The runs that `tfdist verify` makes, and what each of them records, as plain values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

# Starts the sentence of a process that refuses a program, and each line about what is running.
PREFIX = "tfdist verify:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """A strategy and its number of devices and processes.

    Attributes:
        name: name in the report, such as "2 replicas".
        strategy: name of the strategy in create_strategy.
        devices: number of local devices of each worker.
        workers: number of worker processes.
    """

    name: str
    strategy: str
    devices: int = 1
    workers: int = 1


ONE_DEVICE = Topology(name="one device", strategy="one_device")


def topologies(*, replicas: tuple[int, ...], workers: int) -> tuple[Topology, ...]:
    """Returns the topologies that are compared with one device.

    Args:
        replicas: numbers of replicas of one process.
        workers: number of worker processes; 0 leaves them out.

    Raises:
        ValueError: if a number is too small.

    Example:
        >>> from tfdist.verify.values import topologies
        >>> [topology.name for topology in topologies(replicas=(2, 4), workers=2)]
        ['2 replicas', '4 replicas', '2 workers']
    """
    for number in replicas:
        if number < 2:
            raise ValueError(f"expected each number of replicas to be at least 2, received {number}.")
    if workers == 1 or workers < 0:
        raise ValueError(f"expected at least 2 workers, or 0 for none, received {workers}.")
    if not replicas and not workers:
        raise ValueError("expected replicas or workers to compare with one device, received neither; add --replicas 2.")
    found = [Topology(name=f"{number} replicas", strategy="mirrored", devices=number) for number in replicas]
    if workers:
        found.append(Topology(name=f"{workers} workers", strategy="multi_worker_mirrored", workers=workers))
    return tuple(found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Changes to a program that remove one possible cause of a difference.

    Attributes:
        loss: rule of create_strategy(loss=...); None leaves the program's own.
        synchronizes: whether every BatchNormalization uses the moments of the global batch.
        removes_noise: whether layers such as Dropout return their inputs, and other random numbers of a step are their
            mean.
        replays: whether the batches of one device are used instead of the program's own data.
        uncompressed: whether gradients are sent without compression.
    """

    loss: str | None = None
    synchronizes: bool = False
    removes_noise: bool = False
    replays: bool = False
    uncompressed: bool = False


AS_IT_IS = Experiment()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the program's first steps.

    Attributes:
        topology: strategy, devices and processes.
        command: words of the program: a path or -m and a module, and its arguments.
        folder: folder for the records.
        steps: number of steps.
        floatx: "float64" or "float32".
        experiment: changes to the program.
        perturbation: relative size of random changes to the initial weights.
        perturbation_seed: seed of these changes.
        batches: file with the batches of one device, for an experiment that replays them.
    """

    topology: Topology
    command: tuple[str, ...]
    folder: Path
    steps: int
    floatx: str = "float64"
    experiment: Experiment = AS_IT_IS
    perturbation: float = 0.0
    perturbation_seed: int = 0
    batches: Path | None = None


@dataclasses.dataclass(kw_only=True)
class Record:
    """What a process has seen of the first steps of its program.

    Attributes:
        initial: weights before the first step, by name; empty if the model had none yet.
        weights: weights after each step, by name.
        logs: losses and metrics after each step.
        evaluated: losses and metrics of `evaluate` on the training data; empty if the data cannot be read again.
        rows: for each step, the fingerprints of the rows of each replica of this process.
        batch_normalizations: names of layers that normalize with the rows of one replica.
        noisy: names and classes of layers that draw random numbers.
        drawing: functions and other layers that draw random numbers in a step.
        mixing: names of layers whose output for a row depends on other rows.
        config: optimizer, loss and other settings that have to be equal everywhere, as text.
        lines: what tfdist has logged.
        is_loop: whether the program trains in a loop of its own with strategy.run.
    """

    initial: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    weights: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    logs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    evaluated: dict[str, float] = dataclasses.field(default_factory=dict)
    rows: list[list[list[str]]] = dataclasses.field(default_factory=list)
    batch_normalizations: list[str] = dataclasses.field(default_factory=list)
    noisy: list[str] = dataclasses.field(default_factory=list)
    drawing: list[str] = dataclasses.field(default_factory=list)
    mixing: list[str] = dataclasses.field(default_factory=list)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)
    is_loop: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The end of a run.

    Attributes:
        records: the record of each process; empty if the run failed.
        error: why the run failed, in one line; "" if it did not.
        output: the last lines that its processes have written.
    """

    records: tuple[Record, ...] = ()
    error: str = ""
    output: str = ""
