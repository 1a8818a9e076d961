"""A cell of the conformance table: a case, the topology that it runs on, and the Run that the case receives."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
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
    "own_losses",
    "own_steps",
    "several_networks",
    "metrics_and_loops",
    "sequences",
    "reading_out",
    "callbacks",
    "saving",
)

# The groups of programs that compute losses and metrics for themselves. CI runs them in float64.
OWN_GROUPS = ("own_losses", "own_steps", "several_networks", "metrics_and_loops", "sequences")

TOLERANCE = 1e-5
# In float64, rounding cannot hide a wrong weight of a loss.
FLOAT64_TOLERANCE = 1e-10
_EXACT = "Computed in float64, in which rounding hides nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """A strategy and its number of devices and processes.

    Attributes:
        name: heading of its column in the table.
        strategy: name of the strategy in create_strategy; empty for one device without a strategy.
        devices: number of local devices of each worker.
        workers: number of worker processes.
        ps: number of parameter servers.
    """

    name: str
    strategy: str
    devices: int = 1
    workers: int = 1
    ps: int = 0

    @property
    def replicas(self) -> int:
        """Number of replicas in sync."""
        return 1 if self.ps else self.devices * self.workers

    @property
    def pipelines(self) -> int:
        """Number of input pipelines of a dataset function."""
        return self.workers

    @property
    def ranks(self) -> int:
        """Number of processes that run the program."""
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
# Two workers update the variables in any order, so only results that do not depend on the order can be compared. This
# topology is not in the table.
UNORDERED = Topology(name="ParameterServer 2", strategy="parameter_server", workers=2, ps=1)
ONE_DEVICE = Topology(name="one device", strategy="")


def trains_on_a_gpu() -> bool:
    """Returns whether TFDIST_CONFORMANCE_DEVICES asks for a GPU. The oracle computes on a CPU."""
    kind = os.environ.get("TFDIST_CONFORMANCE_DEVICES", "CPU")
    if kind not in ("CPU", "GPU"):
        raise ValueError(
            f"expected TFDIST_CONFORMANCE_DEVICES to be CPU or GPU, received {kind!r}; leave it out for CPU."
        )
    return kind == "GPU"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A row of the table.

    Attributes:
        name: name of its function.
        group: name of the module that defines it.
        title: heading of its row in the table.
        function: takes a Run and returns plain numbers and lists.
        tolerance: largest relative error that passes, as compare.py computes it.
        why: reason for a tolerance other than TOLERANCE.
        per: attributes of the topology on which the expected result depends, such as "replicas".
        not_on: the strategies to which the case does not apply, with the reason for each.
        refused_on: the strategies on which tfdist or Keras may refuse the case with one sentence.
        floatx: Keras's default float type while the case runs, "float32" or "float64".
        order_free: whether the result does not depend on the order in which two workers update the variables.
        reference: name of the case that computes the expected result on one device; empty for the case itself.
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
    floatx: str = "float32"
    order_free: bool = False
    reference: str = ""

    def applies(self, topology: Topology) -> str:
        """Returns the reason why the case does not apply to a topology, or an empty text if it applies."""
        if topology is UNORDERED and not self.order_free:
            return "two workers write in any order"
        return self.not_on.get(topology.strategy, "")


_cases: dict[str, Case] = {}


def case(title: str, **options: Any) -> Callable[[Callable], Callable]:
    """Registers a function as a row of the table."""
    if options.get("floatx") == "float64":
        options = {"tolerance": FLOAT64_TOLERANCE, "why": _EXACT, **options}

    def register(function: Callable) -> Callable:
        group = function.__module__.rsplit(".", 1)[-1]
        _cases[function.__name__] = Case(name=function.__name__, group=group, title=title, function=function, **options)
        return function

    return register


def all_cases() -> dict[str, Case]:
    """Returns every case by its name, in the order of the table. TensorFlow is imported only when a case runs."""
    for group in GROUPS:
        importlib.import_module(f"tests.conformance.cases.{group}")
    order = {name: i for i, name in enumerate(_cases)}
    return dict(sorted(_cases.items(), key=lambda item: (GROUPS.index(item[1].group), order[item[0]])))


# CI runs every row on several replicas at least once: what depends on a sum over replicas on two workers, and the other
# groups where they differ most, since the replicas of a process are threads that share its callbacks, and parameter
# servers have a loop of their own. The cells of DistributedOptimizer, whose names end with a compression, are described
# below: they run the gradient rules on two workers.
_CORE_GROUPS = {
    "Mirrored 2": ("gradient_rules", "reading_out", "callbacks"),
    "MultiWorkerMirrored 2x1": (
        "data_in",
        "uneven_data",
        "precision",
        "layers",
        *OWN_GROUPS,
        "saving",
    ),
    "CentralStorage 2": ("execution",),
    "ParameterServer 1": ("execution", "saving"),
    "ParameterServer 2": GROUPS,
}
# With tf_keras, CI runs the groups that depend on the loops and the optimizers of Keras.
_CORE_GROUPS_OF_TF_KERAS = {
    "MultiWorkerMirrored 2x1": ("uneven_data", "gradient_rules", "layers", *OWN_GROUPS[:3]),
    "ParameterServer 1": ("execution",),
}
IS_TF_KERAS = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
CORE_GROUPS = _CORE_GROUPS_OF_TF_KERAS if IS_TF_KERAS else _CORE_GROUPS


def is_core(topology: Topology, case: Case) -> bool:
    """Returns whether CI runs a cell."""
    if case.group in OWN_GROUPS and case.floatx != "float64":
        return False
    return case.group in CORE_GROUPS.get(topology.name, ())


# fp16 rounds in the same way within a process and across workers, so it is tested across workers, where it is useful.
COMPRESSIONS = {"MultiWorkerMirrored 2x1": ("none", "fp16"), "Mirrored 2": ("none",)}


def is_distributed_core(topology: Topology, case: Case) -> bool:
    """Returns whether CI runs a cell of DistributedOptimizer."""
    groups = ("gradient_rules",) if IS_TF_KERAS else ("gradient_rules", "uneven_data")
    return topology.workers > 1 and case.name.endswith("-none") and case.group in groups


# The groups about gradients, which DistributedOptimizer handles with code of its own.
GRADIENT_GROUPS = ("uneven_data", "gradient_rules", "precision", "execution")
_ROUNDED = "float16 has eleven binary digits, and each sum is rounded to them"


def float32_cases() -> dict[str, Case]:
    """Returns the rows that are computed in float64 as cases in float32, which are not in the table."""
    exact = [one for one in all_cases().values() if one.floatx == "float64"]
    return {
        f"{one.name}-float32": dataclasses.replace(
            one, name=f"{one.name}-float32", floatx="float32", tolerance=TOLERANCE, why=""
        )
        for one in exact
    }


def distributed_cases() -> dict[str, Case]:
    """Returns the rows about gradients for DistributedOptimizer, without compression and with fp16."""
    made = {}
    for one in all_cases().values():
        for compression in ("none", "fp16"):
            if one.group not in GRADIENT_GROUPS or (compression != "none" and one.group == "execution"):
                continue

            def function(run: Run, one: Case = one, compression: str = compression) -> Any:
                return one.function(dataclasses.replace(run, compression=compression))

            name = f"{one.name}-{compression}"
            made[name] = dataclasses.replace(one, name=name, function=function, reference=one.name)
            if compression == "fp16":
                made[name] = dataclasses.replace(made[name], tolerance=max(one.tolerance, 2e-2), why=_ROUNDED)
    return made


@dataclasses.dataclass
class Run:
    """The strategy, the folder and the rank with which a case runs.

    Attributes:
        strategy: None for the oracle, which is one device on stock Keras without tfdist.
        topology: topology of the strategy; for the oracle, topology of the cell that is compared with it.
        folder: folder that all ranks share, empty when the case begins.
        rank: number of this process.
        compression: compression of a DistributedOptimizer; empty if the optimizer is not wrapped.
    """

    strategy: Any
    topology: Topology
    folder: Path
    rank: int = 0
    compression: str = ""

    @property
    def is_oracle(self) -> bool:
        """Whether this run computes the expected result."""
        return self.strategy is None

    def scope(self) -> Any:
        """Returns the scope of the strategy, or an empty context for the oracle."""
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def barrier(self) -> None:
        """Waits until every rank has called it."""
        if self.topology.ranks == 1 or self.strategy is None:
            return
        import tensorflow as tf

        ones = self.strategy.run(lambda: tf.ones([]))
        total = self.strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)
        assert int(total) == self.topology.replicas
