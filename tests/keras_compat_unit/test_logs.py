"""Logs of several dtypes and shapes are averaged over the replicas of one process."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.steps.logs_reduced_along_an_axis import mean_over_replicas
from tfdist.strategies import mirrored


def test_the_mean_is_taken_over_local_replicas_for_every_dtype(four_cpus):
    strategy = mirrored(devices=2)

    @tf.function
    def step():
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = tf.cast(replica, tf.float32)
            return {"loss": own, "rows": replica, "vector": tf.stack([own, own + 10]), "half": tf.cast(own, tf.float16)}

        return mean_over_replicas(strategy.run(replica_step), strategy)

    means = step()
    assert float(means["loss"]) == 0.5
    assert float(means["rows"]) == 0.5
    assert float(means["half"]) == 0.5
    np.testing.assert_array_equal(means["vector"], [0.5, 10.5])
