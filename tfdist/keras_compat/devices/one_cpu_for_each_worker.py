"""Mends MultiWorkerMirroredStrategy, which uses only one logical CPU of a worker without GPUs.

With the mend, a strategy that is made within `on_cpus` trains on several logical CPUs of each worker. The mend is
applied before the strategy is made, because TensorFlow chooses the devices when the strategy is made.

Source: CollectiveAllReduceExtended._initialize_local_devices in TensorFlow. No upstream issue is known.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdist.keras_compat.mend import Mend, patch_method

_METHOD = "_initialize_local_devices"

_cpus: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("cpus", default=())


def _defect_present() -> bool:
    return "num_local_devices = 1" in inspect.getsource(getattr(_extended(), _METHOD))


def _extended() -> Any:
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

    return CollectiveAllReduceExtended


def _apply() -> None:
    patch_method(_extended(), _METHOD, _taking_the_cpus)


def _taking_the_cpus(stock: Callable) -> Callable:
    def initialize_local_devices(self: Any, cluster_resolver: Any, worker_device: str) -> tuple[Sequence[str], str]:
        if not _cpus.get():
            return stock(self, cluster_resolver, worker_device)
        return tuple(f"{worker_device}/device:{name}" for name in _cpus.get()), "CPU"

    return initialize_local_devices


@contextlib.contextmanager
def on_cpus(names: Sequence[str]) -> Iterator[None]:
    """Makes the strategies that are made within the context train on these logical CPUs of each worker.

    Args:
        names: names of logical CPUs, such as ["CPU:0", "CPU:1"]; empty for TensorFlow's own choice.
    """
    token = _cpus.set(tuple(names))
    try:
        yield
    finally:
        _cpus.reset(token)


MEND = Mend(
    name="one_cpu_for_each_worker",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a worker without GPUs trains on one CPU, even if it has several logical CPUs",
    rows=("number of replicas",),
    # Needed before the strategy is made. create_strategy asks for this only for several logical CPUs.
    needed_by=lambda strategy: strategy is None,
)
