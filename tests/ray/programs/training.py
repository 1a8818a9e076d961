"""Trains the same model under Ray Train and on one device, and prints what each training has given as JSON.

The train function may fail, or kill a worker, in its first start.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig

from tfdist.ray import TfdistConfig, TfdistTrainer

EPOCHS, ROWS, BATCH = 3, 48, 8


def train(config: dict[str, Any]) -> None:
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tfdist.checkpoint import AutoResume
    from tfdist.keras_compat import keras_in_use
    from tfdist.ray import ReportCallback

    index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    attempt = int(os.environ.get("TFDIST_ATTEMPT", "0"))
    if config.get("raises") and index == 1:
        raise ValueError("expected good rows, received bad ones.")
    strategy = tfdist.create_strategy(config.get("strategy", "auto"))
    tf.keras.backend.set_floatx("float64")
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(16, activation="tanh"), layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(ROWS, 4))
    rows = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))

    class Counting(tf.keras.callbacks.Callback):
        steps_made = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            Counting.steps_made += 1
            if Counting.steps_made == config.get("kill_after") and attempt == 0 and index == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [Counting()]
    if config.get("strategy") is None:
        callbacks.append(ReportCallback())
    if config.get("snapshots"):
        callbacks.append(AutoResume(config["snapshots"], every_steps=4, memory=config.get("memory", True)))
    history = model.fit(rows.shuffle(32, seed=7).batch(BATCH), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    values = [*model.get_weights(), *(np.asarray(tf.convert_to_tensor(one)) for one in model.optimizer.variables)]
    result = {
        "keras": keras_in_use().name,
        "strategy": type(strategy).__name__,
        "replicas": strategy.num_replicas_in_sync,
        "attempt": attempt,
        "steps_made": Counting.steps_made,
        "weights": [value.tolist() for value in model.get_weights()],
        "bits": hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in values)).hexdigest(),
        "history": history.history,
    }
    Path(config["output"], f"worker-{index}.json").write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--config", type=json.loads, default={})
    parser.add_argument("--tf-keras", action="store_true", default=None)
    parser.add_argument("--max-failures", type=int, default=0)
    given = parser.parse_args()
    config = {"output": str(given.folder), **given.config}
    if config.get("strategy"):
        train(config)
        return
    # Ray asks its workers for their reports every two seconds by default.
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.5"
    # Ray's own processes, which are in sessions of their own, end when this program does.
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TfdistTrainer(
        train,
        train_loop_config=config,
        tfdist_config=TfdistConfig(tf_keras=given.tf_keras),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=str(given.folder / "ray"),
            failure_config=FailureConfig(max_failures=given.max_failures),
        ),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as folder:
        files = sorted(os.listdir(folder))
    reported = {"metrics": result.metrics, "epochs": result.metrics_dataframe.to_dict("list"), "files": files}
    (given.folder / "result.json").write_text(json.dumps(reported))


if __name__ == "__main__":
    main()
