"""Mends Keras 2's logs of single batches under MultiWorkerMirroredStrategy, which are summed over workers.

The result of a metric already includes all replicas, because `result()` merges their values. `reduce_per_replica` then
sums the equal results of the workers, so that two workers show twice the loss, and an accuracy above 1, until the epoch
ends. With the mend the results of metrics are not summed. Other scalars that a train_step returns are parts of the
value of the global batch, and are summed (see losses/driven_steps_keras2.py).

Source: reduce_per_replica in Keras 2's training.py. No upstream issue is known.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import engine_module

_models: list[Any] = []


def _defect_present() -> bool:
    source = inspect.getsource(engine_module("training").reduce_per_replica)
    return "_collective_all_reduce_multi_worker" in source and 'strategy.reduce("SUM", v' in source


def _apply() -> None:
    training: Any = engine_module("training")
    stock = training.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        across_workers = training._collective_all_reduce_multi_worker(strategy)
        if not (across_workers and reduction == "auto" and _models and isinstance(values, dict)):
            return stock(values, strategy, reduction)
        raw = getattr(_models[-1], "_tfdist_raw_logs", values)
        return {
            name: stock(value, strategy, reduction) if name in raw else strategy.experimental_local_results(value)[0]
            for name, value in values.items()
        }

    training.reduce_per_replica = reduce_per_replica
    for name in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
        patch_method(training.Model, name, _remembering_the_model)


def _remembering_the_model(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras calls reduce_per_replica while it traces the functions of the model, but does not pass the model.
        with _current(self):
            return stock(self, *args, **kwargs)

    return method


@contextlib.contextmanager
def _current(model: Any) -> Iterator[None]:
    _models.append(model)
    try:
        yield
    finally:
        _models.pop()


MEND = Mend(
    name="batch_logs_summed_over_workers",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="logs of single batches are summed over workers: two workers show an accuracy of up to 2",
    rows=("logs of single batches", "train_on_batch, test_on_batch"),
)
