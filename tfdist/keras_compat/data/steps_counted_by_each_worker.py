"""Mends Keras 3's count of the steps of a distributed dataset, which every worker takes from its own part of it.

Where workers have different numbers of batches they end an epoch at different steps, and meet in the wrong collective
("expected type ... but got type ..."); on one worker the count is that of the replicas' batches, a multiple of the
steps. Here the end of the data ends the epoch, at the same step on every worker. Source: TFDatasetAdapter.num_batches
in Keras 3, which asks the local dataset for its cardinality; we know of no upstream issue.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    getter = TFDatasetAdapter.num_batches.fget
    return "cardinality" in getter.__code__.co_names and "distribute" not in getter.__code__.co_names


def _apply() -> None:
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    stock = TFDatasetAdapter.num_batches.fget

    def num_batches(self: Any) -> int | None:
        return None if isinstance(self._dataset, tf.distribute.DistributedDataset) else stock(self)

    TFDatasetAdapter.num_batches = property(num_batches)


MEND = Mend(
    name="steps_counted_by_each_worker",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
)
