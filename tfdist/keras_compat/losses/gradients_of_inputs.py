"""The gradient of a mean over rows with respect to the rows, as in adversarial training.

A replica's mean has fewer rows than that of the global batch, so that its gradient with respect to each row is larger:
on two replicas twice as large. It is multiplied by the replica's share of the rows. A sum over rows, and one value for
each row as in a penalty on gradients, have the gradient of one device by themselves. A tensor that is computed from
weights has no rows, however long it is: its gradient is weighted by the optimizer, as that of the weight.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.first_axis import is_of_weights
from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.losses.means_over_rows import has_rows, is_mean_over_rows


def gradients_of_rows(target: Any, sources: Any, gradients: Any, batch: GlobalBatch) -> Any:
    """Returns gradients in which those of a mean over a replica's rows, with respect to rows, are of the global mean.

    Args:
        target: the tensors that were differentiated, nested or not.
        sources: the tensors or variables with respect to which `target` was differentiated.
        gradients: the gradients, nested as the sources.
        batch: the global batch of the step.
    """
    with_rows = [_may_be_rows(one, batch) for one in tf.nest.flatten(sources)]
    if not any(with_rows) or not batch.is_replica_mean:
        return gradients
    if not all(is_mean_over_rows(one, batch) for one in tf.nest.flatten(target)):
        return gradients
    found = tf.nest.flatten(gradients)
    scaled = [batch.times_share(one) if rows else one for one, rows in zip(found, with_rows, strict=True)]
    return tf.nest.pack_sequence_as(gradients, scaled)


def _may_be_rows(source: Any, batch: GlobalBatch) -> bool:
    # A tensor of known rows that is computed from a weight may be as long. A constant, such as the zeros from which a
    # perturbation begins, has no origin that tells, and is judged by its length, as is an eager tensor.
    return has_rows(source, batch) and not (hasattr(source, "graph") and is_of_weights(source))
