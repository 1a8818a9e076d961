"""No count is lost if two workers write to a parameter server at the same time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.processes import launch

PROGRAM = """
import json
import numpy as np
import tensorflow as tf
import tfdist

strategy = tfdist.create_strategy("parameter_server", startup_timeout_seconds=60)
rng = np.random.default_rng(0)
x = rng.normal(size=(640, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(2)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
seen = []


class Recorder(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.append({name: float(value) for name, value in logs.items()})


data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
history = model.fit(data, steps_per_epoch=400, epochs=1, verbose=0, callbacks=[Recorder()])
iterations = int(model.optimizer.iterations.numpy())


# A custom training loop works after fit, and its steps are counted too.
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
variables = model.trainable_variables


@tf.function
def step(batch):
    def replica_step(batch):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(model(batch[0]) ** 2)
        model.optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))

    strategy.run(replica_step, args=(batch,))


for _ in range(100):
    coordinator.schedule(step, args=((x[:8], y[:8]),))
coordinator.join()
after_own_loop = int(model.optimizer.iterations.numpy())


try:
    model.fit(tf.data.Dataset.from_tensor_slices((x[:, :3], y)).batch(8), verbose=0)
    error = "none"
except Exception as e:
    error = type(e).__name__
again = model.evaluate(x, y, batch_size=64, verbose=0, return_dict=True)
with open("results.json", "w") as file:
    json.dump(
        {
            "iterations": iterations,
            "after_own_loop": after_own_loop,
            "seen": seen,
            "history": {name: [float(v) for v in values] for name, values in history.history.items()},
            "error": error,
            "again": {name: float(value) for name, value in again.items()},
        },
        file,
    )
"""


def test_400_steps_of_two_workers_count_as_400_and_metrics_stay_in_range(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = launch("--workers", "2", "--ps", "1", "--", "program.py", cwd=tmp_path, deadline_seconds=150)
    assert ended.code == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["iterations"] == 400
    assert results["after_own_loop"] == 500
    assert len(results["seen"]) == 400
    for logs in [*results["seen"], results["again"]]:
        assert 0 <= logs["accuracy"] <= 1
        assert logs["loss"] >= 0
    assert results["seen"][-1] == {name: values[-1] for name, values in results["history"].items()}
    # Each step has 8 rows, so the mean over k steps is a multiple of 1/(8k). A lost or doubled count would change that.
    for k, logs in enumerate(results["seen"], start=1):
        right = logs["accuracy"] * 8 * k
        assert abs(right - round(right)) < 1e-2 * max(1, k / 100)
    assert results["error"] not in ("none", "CancelledError")
