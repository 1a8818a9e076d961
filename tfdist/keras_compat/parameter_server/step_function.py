"""StepFunction: a training or evaluation step, traced for the workers of a parameter-server cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras_in_use


class StepFunction:
    """One step of training or evaluation, as two graphs: one takes a batch, the other takes an iterator.

    Args:
        step: maps a batch to a flat list of tensors; runs in replica context on a worker.
        coordinator: the cluster's ClusterCoordinator.

    Attributes:
        coordinator: the cluster's ClusterCoordinator.
        on_batch: maps a batch to the outputs of the step.
        on_iterator: maps a worker's iterator to (whether it had data, index of the worker, outputs of the step); the
            outputs are zeros if there was no data.
    """

    def __init__(self, step: Callable[[Any], list[tf.Tensor]], coordinator: Any) -> None:
        self.coordinator = coordinator
        strategy = coordinator.strategy
        if not keras_in_use().is_keras3:
            # Keras 2 needs autograph to convert the `call` of each layer. The tf.functions below have autograph off, so
            # that the step is converted here.
            outside = tf.__internal__.autograph.control_status_ctx()
            step = tf.__internal__.autograph.tf_convert(step, outside, convert_by_default=False)

        def on_batch(batch: Any) -> list[tf.Tensor]:
            return strategy.run(step, args=(tf.nest.map_structure(_of_unknown_size, batch),))

        def on_iterator(iterator: Any) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            optional = iterator.get_next_as_optional()
            specs: list[tf.TensorSpec] = []

            def run() -> list[tf.Tensor]:
                outputs = on_batch(optional.get_value())
                specs[:] = [tf.TensorSpec(output.shape, output.dtype) for output in outputs]
                return outputs

            def skip() -> list[tf.Tensor]:
                # tf.cond traces `run` first, so that the shapes of its outputs are known here.
                return [tf.zeros([size or 0 for size in spec.shape], spec.dtype) for spec in specs]

            has_data = optional.has_value()
            return has_data, worker, tf.cond(has_data, run, skip)

        self.on_batch = tf.function(on_batch, autograph=False, reduce_retracing=True)
        self.on_iterator = tf.function(on_iterator, autograph=False)


def _of_unknown_size(value: Any) -> Any:
    # Makes the batch size unknown, as in batches of a dataset: Keras 3 weights the losses of outputs by a static size.
    if not isinstance(value, tf.Tensor) or not value.shape.rank:
        return value
    return tf.compat.v1.placeholder_with_default(value, [None, *value.shape[1:]])
