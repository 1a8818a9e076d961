"""Metrics of one's own and losses in a list, where a batch leaves a replica without rows, on one device and on two."""

from __future__ import annotations

import json

import numpy as np
import pytest

PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf
import tfdist

keras = tf.keras
keras.backend.set_floatx("float64")
replicas, eager = int(sys.argv[2]), len(sys.argv) > 3
strategy = tfdist.create_strategy(sys.argv[1], **({"devices": replicas} if replicas > 1 else {}))
# The last batch has one row, so that the second replica has no rows.
x = np.random.default_rng(0).normal(size=(9, 3))
y = x.sum(axis=1, keepdims=True)


class Own(keras.metrics.Metric):
    def __init__(self, name):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def result(self):
        return self.total / self.count


class MeanOfBatches(Own):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(tf.abs(y_true - y_pred)))
        self.count.assign(self.count + 1)


class Rows(Own):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_sub(-tf.reduce_sum(tf.abs(y_true - y_pred)))
        self.count.assign(self.count + tf.cast(tf.shape(y_true)[0], self.count.dtype))


class Late(Own):
    def __init__(self, name):
        super().__init__(name)
        self.late = None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.late is None:
            self.late = self.add_weight(name="late", initializer="zeros")
        self.late.assign_add(tf.reduce_mean(tf.abs(y_true - y_pred)))
        self.count.assign_add(1.0)

    def result(self):
        return self.count if self.late is None else self.late / self.count


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.called, self.sum = MeanOfBatches("called"), keras.metrics.Sum(name="sum")
        self.in_list, self.in_axis = keras.metrics.Mean(name="in_list"), keras.metrics.Mean(name="in_axis")
        self.of_two, self.in_stack = keras.metrics.Mean(name="of_two"), keras.metrics.Mean(name="in_stack")
        self.in_lists, self.of_rows = keras.metrics.Mean(name="in_lists"), keras.metrics.Mean(name="of_rows")

    def call(self, inputs):
        return 2 * self.dense(inputs)

    def test_step(self, data):
        x, y = data
        outputs = self(x)
        loss = tf.reduce_mean(tf.square(y - outputs))
        self.called.update_state(y, outputs)
        self.sum.update_state(loss)
        self.in_list.update_state([loss])
        self.in_axis.update_state(loss[tf.newaxis])
        errors = tf.abs(y - outputs)
        self.of_two.update_state([loss, tf.reduce_mean(errors)])
        self.in_stack.update_state(tf.stack([0.5 * loss, tf.reduce_mean(errors), 0.0]))
        self.in_lists.update_state([[loss]])
        self.of_rows.update_state(tf.concat([errors[:, 0], 3.0 * errors[:, 0]], axis=0))
        return self.compute_metrics(x, y, outputs, None)


with strategy.scope():
    model = Model()
    model.compile("sgd", "mse", metrics=[MeanOfBatches("mean"), Rows("rows"), Late("late")], run_eagerly=eager)
found = model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
print("RESULT", json.dumps({name: float(value) for name, value in found.items()}))
"""

Y = np.random.default_rng(0).normal(size=(9, 3)).sum(axis=1)
# The rows of each update, on one device and on the replicas that have rows.
BATCHES = (Y[:4], Y[4:8], Y[8:])
SHARES = (Y[:2], Y[2:4], Y[4:6], Y[6:8], Y[8:])


def expected(updates):
    """Returns what the metrics give; the outputs of the model are twice the targets."""
    means = np.mean([np.abs(one).mean() for one in updates])
    return {
        "mean": means,
        "called": means,
        "late": means,
        "rows": np.abs(Y).mean(),
        "sum": sum(np.square(one).mean() for one in updates),
        # A Mean of scalars is that of one device.
        "in_list": np.mean([np.square(one).mean() for one in BATCHES]),
        "in_axis": np.mean([np.square(one).mean() for one in BATCHES]),
        "of_two": np.mean([[np.square(one).mean(), np.abs(one).mean()] for one in BATCHES]),
        "in_stack": np.mean([[0.5 * np.square(one).mean(), np.abs(one).mean(), 0.0] for one in BATCHES]),
        "in_lists": np.mean([np.square(one).mean() for one in BATCHES]),
        # Values of rows count once for each row.
        "of_rows": 2 * np.abs(Y).mean(),
    }


@pytest.mark.parametrize(
    ("arguments", "updates"),
    [
        (("one_device", "1"), BATCHES),
        (("mirrored", "2"), SHARES),
        (("central_storage", "2"), SHARES),
        (("mirrored", "2", "eager"), SHARES),
    ],
    ids=lambda value: "-".join(value) if isinstance(value[0], str) else "",
)
def test_a_replica_without_rows_changes_no_metric(arguments, updates, children):
    finished = children.run(PROGRAM, *arguments)
    assert "RESULT " in finished.out, finished.err
    found = json.loads(finished.out.split("RESULT ")[1])
    found.pop("loss", None)
    if "eager" in arguments:
        # Without a graph it is not seen what a list is made of.
        for name in ("of_two", "in_stack", "in_lists"):
            del found[name]
    wanted = {name: value for name, value in expected(updates).items() if name in found}
    assert set(wanted) == set(found)
    assert found == pytest.approx(wanted, rel=1e-12)
