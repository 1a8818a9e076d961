"""A worker whose callback ends the training after a step of its own: python stops.py FOLDER EVERY STEPS_PER_EPOCH"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.averaging import LocalSGD

FOLDER, EVERY, STEPS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ASKING, STEP = 1, 7
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tfdist.create_strategy("multi_worker_mirrored")
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(LocalSGD(tf.keras.optimizers.SGD(0.01), every=EVERY), "mse")


class Asks(tf.keras.callbacks.Callback):
    """Counts the steps of this worker, and ends the training on one worker, as TerminateOnNaN does."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if index == ASKING and self.steps == STEP:
            self.model.stop_training = True


asks = Asks()
dataset = tf.data.Dataset.from_tensors((np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))).repeat()
data = strategy.distribute_datasets_from_function(lambda context: dataset)
epochs = model.fit(data, epochs=3, steps_per_epoch=STEPS, verbose=0, callbacks=[asks]).epoch
(FOLDER / f"{index}.json").write_text(json.dumps({"steps": asks.steps, "epochs": len(epochs)}))
