"""Mends Keras 3's number of steps in an epoch, which every worker counts in its own part of a distributed dataset.

If the workers' parts have different numbers of batches, the workers end an epoch at different steps and run different
collectives at the same time ("expected type ... but got type ..."). With a single worker, Keras uses the number of
batches of all replicas together, which is a multiple of the number of steps. With the mend the epoch ends at the end of
the data, at the same step on every worker.

Source: TFDatasetAdapter.num_batches in Keras 3, which reads the cardinality of the local dataset. No upstream issue is
known.
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
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="each worker counts the steps of its own part of the data: `fit` fails or hangs if the parts end at "
    "different steps",
    rows=("pipelines that end at different steps",),
)
