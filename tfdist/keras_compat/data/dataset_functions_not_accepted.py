"""Mends Keras 3.8's choice of a data adapter, which does not know the datasets of a dataset function.

`fit`, `evaluate` and `predict` refuse what strategy.distribute_datasets_from_function returns ("Unrecognized data
type"), although the adapter of tf.data datasets can read it, as it does in later releases of Keras. The datasets of
tfdist.input are of this kind.

Source: is_tf_dataset in Keras 3's trainers/data_adapters/__init__.py, which names the class since Keras 3.9.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from keras.src.trainers import data_adapters

    return "DistributedDatasetsFromFunction" not in inspect.getsource(data_adapters.is_tf_dataset)


def _or_from_a_function(stock: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def is_tf_dataset(x: Any) -> bool:
        return stock(x) or isinstance(x, tf.distribute.DistributedDataset)

    return is_tf_dataset


def _apply() -> None:
    from keras.src.trainers import data_adapters

    data_adapters.is_tf_dataset = _or_from_a_function(data_adapters.is_tf_dataset)


MEND = Mend(
    name="dataset_functions_not_accepted",
    issue="not reported",
    strategies=("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 8)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`fit`, `evaluate` and `predict` refuse the datasets of a dataset function",
    rows=("distribute_datasets_from_function", "evaluate a dataset function"),
)
