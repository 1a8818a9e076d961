"""Mends Keras 3's build before training, which averages input data over replicas to find its shape.

The average fails under a strategy with one device per worker (keras-team/keras#20585), for strings, and if the batches
of the replicas differ in size (keras-team/keras#19246). The mend takes shapes and dtypes from the dataset's own
specification, so that no batch is read, and a dataset that is shuffled anew in each epoch has the order that it has
without a strategy. If the rank is not in the specification, the batch of the first replica is read.

Source: `_maybe_symbolic_build` in Keras 3's TensorFlow trainer; upstream issue keras-team/keras#20585.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    return "reduce" in TensorFlowTrainer._maybe_symbolic_build.__code__.co_names


def batch_spec(dataset: Any) -> Any:
    """Returns the specification of one replica's batch of a dataset, distributed or not.

    Args:
        dataset: a dataset that has an `element_spec`.
    """
    return tf.nest.map_structure(
        # A PerReplicaSpec holds one specification for each local replica.
        lambda spec: getattr(spec, "_value_specs", (spec,))[0],
        dataset.element_spec,
    )


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    def first_local_batch(trainer: Any, iterator: Any) -> Any:
        if isinstance(trainer.distribute_strategy, tf.distribute.ParameterServerStrategy):
            if not isinstance(iterator._distributed_dataset, tf.data.Dataset):
                raise ValueError(
                    "expected a dataset function whose tensors have a known rank for the strategy parameter_server, "
                    f"received {iterator._distributed_dataset.element_spec}; call set_shape in a map function of the "
                    "dataset."
                )
            return next(iter(iterator._distributed_dataset))
        *_, data = next(iter(iterator))
        return tf.nest.map_structure(
            lambda value: trainer.distribute_strategy.experimental_local_results(value)[0], next(data)
        )

    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if self._distribute_strategy is None:
            return
        if iterator is not None:
            data_batch = batch_spec(iterator._distributed_dataset)
            if any(spec.shape.rank is None for spec in tf.nest.flatten(data_batch)):
                data_batch = first_local_batch(self, iterator)
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = maybe_symbolic_build


MEND = Mend(
    name="symbolic_build_averages_data",
    issue="keras-team/keras#20585",
    # On one device the build would read the data once, after which `shuffle` gives another order than without strategy.
    strategies=("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="building a model averages input data over replicas: `fit` fails with one device per worker, and with "
    "strings; on one device it reads the data once, so that `shuffle` gives another order",
    rows=("strings through a lookup layer", "arrays", "tf.data, finite"),
)
