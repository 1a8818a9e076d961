"""What a cell of the conformance table is: a case, the topology it runs on, and what the case is given to run with."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUPS = (
    "data_in",
    "uneven_data",
    "gradient_rules",
    "precision",
    "execution",
    "layers",
    "reading_out",
    "callbacks",
    "saving",
)

TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """A strategy and how many devices it gets.

    Attributes:
        name: what the table calls it.
        strategy: its name in create_strategy.
        devices: local devices of each worker.
        workers: worker processes.
        ps: parameter servers.
    """

    name: str
    strategy: str
    devices: int = 1
    workers: int = 1
    ps: int = 0

    @property
    def replicas(self) -> int:
        """How many replicas train in sync."""
        return 1 if self.ps else self.devices * self.workers

    @property
    def pipelines(self) -> int:
        """How many input pipelines a dataset function makes."""
        return self.workers

    @property
    def ranks(self) -> int:
        """How many processes run the program."""
        return 1 if self.ps else self.workers


TOPOLOGIES = (
    Topology(name="OneDevice", strategy="one_device"),
    Topology(name="Mirrored 2", strategy="mirrored", devices=2),
    Topology(name="Mirrored 4", strategy="mirrored", devices=4),
    Topology(name="MultiWorkerMirrored 2x1", strategy="multi_worker_mirrored", workers=2),
    Topology(name="MultiWorkerMirrored 2x2", strategy="multi_worker_mirrored", workers=2, devices=2),
    Topology(name="CentralStorage 2", strategy="central_storage", devices=2),
    Topology(name="ParameterServer 1", strategy="parameter_server", ps=1),
)
# Two workers write in any order: only what does not depend on it can be compared. Not in the table.
UNORDERED = Topology(name="ParameterServer 2", strategy="parameter_server", workers=2, ps=1)
ONE_DEVICE = Topology(name="one device", strategy="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A row of the table.

    Attributes:
        name: the name of its function.
        group: the file it is in.
        title: what the table calls it.
        function: takes a Run, returns plain numbers and lists.
        tolerance: largest relative error of any number, see compare.py.
        why: of a tolerance other than the usual one.
        per: what of the topology the oracle has to know: "replicas", "pipelines".
        not_on: reasons by strategy for which the case does not apply.
        refused_on: strategies on which tfdist, or Keras itself, may refuse it in a sentence.
        order_free: whether it holds even when two workers write in any order.
    """

    name: str
    group: str
    title: str
    function: Callable[[Run], Any]
    tolerance: float = TOLERANCE
    why: str = ""
    per: tuple[str, ...] = ()
    not_on: dict[str, str] = dataclasses.field(default_factory=dict)
    refused_on: tuple[str, ...] = ()
    order_free: bool = False

    def applies(self, topology: Topology) -> str:
        """Returns why the case does not apply to a topology; nothing if it does."""
        if topology is UNORDERED and not self.order_free:
            return "two workers write in any order"
        return self.not_on.get(topology.strategy, "")


_cases: dict[str, Case] = {}


def case(title: str, **options: Any) -> Callable[[Callable], Callable]:
    """Makes a row of the table out of a function."""

    def register(function: Callable) -> Callable:
        group = function.__module__.rsplit(".", 1)[-1]
        _cases[function.__name__] = Case(name=function.__name__, group=group, title=title, function=function, **options)
        return function

    return register


def all_cases() -> dict[str, Case]:
    """Returns every case by its name, in the order of the table. Imports TensorFlow no sooner than a case runs."""
    for group in GROUPS:
        importlib.import_module(f"tests.conformance.cases.{group}")
    order = {name: i for i, name in enumerate(_cases)}
    return dict(sorted(_cases.items(), key=lambda item: (GROUPS.index(item[1].group), order[item[0]])))


# The rows in which it matters how many replicas there are: on more than two replicas the others are left to tests/full.
REPLICA_GROUPS = ("uneven_data", "gradient_rules", "layers")


def is_core(topology: Topology, case: Case) -> bool:
    """Returns whether CI runs a cell."""
    return topology.replicas <= 2 or case.group in REPLICA_GROUPS


# The rows that are about gradients, which DistributedOptimizer takes another way.
GRADIENT_GROUPS = ("uneven_data", "gradient_rules", "precision", "execution")
_ROUNDED = "float16 has eleven binary digits, and each sum is rounded to them"


def distributed_cases() -> dict[str, Case]:
    """Returns the rows about gradients once more, with DistributedOptimizer, as it is and with compression."""
    made = {}
    for one in all_cases().values():
        for compression in ("none", "fp16"):
            if one.group not in GRADIENT_GROUPS or (compression != "none" and one.group == "execution"):
                continue

            def function(run: Run, one: Case = one, compression: str = compression) -> Any:
                return one.function(dataclasses.replace(run, compression=compression))

            name = f"{one.name}-{compression}"
            made[name] = dataclasses.replace(one, name=name, function=function)
            if compression == "fp16":
                made[name] = dataclasses.replace(made[name], tolerance=max(one.tolerance, 2e-2), why=_ROUNDED)
    return made


@dataclasses.dataclass
class Run:
    """Where a case runs.

    Attributes:
        strategy: None for the oracle: one device, stock Keras, no tfdist.
        topology: that of the strategy; for the oracle that of the cell it is compared with.
        folder: shared by all ranks, empty when the case begins.
        rank: of this worker.
        compression: of a DistributedOptimizer; empty for the optimizer as it is.
    """

    strategy: Any
    topology: Topology
    folder: Path
    rank: int = 0
    compression: str = ""

    @property
    def is_oracle(self) -> bool:
        """Whether this is what the others are compared with."""
        return self.strategy is None

    def scope(self) -> Any:
        """The strategy's scope."""
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def barrier(self) -> None:
        """Waits until every rank is here."""
        if self.topology.ranks == 1 or self.strategy is None:
            return
        import tensorflow as tf

        ones = self.strategy.run(lambda: tf.ones([]))
        total = self.strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)
        assert int(total) == self.topology.replicas
