"""Two workers that are about to train differently raise the same error, which names the difference, and can go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import launch

# Every attempt ends on both workers, so that one pair of processes makes all of them, one after another.
PROGRAM = """
import json, os
import tfdist

strategy = tfdist.create_strategy(startup_timeout_seconds=60)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
import tensorflow as tf

keras = tf.keras
X, Y = tf.ones([32, 8]), tf.ones([32, 3])


def batches(size=8, dtype="float32"):
    return tf.data.Dataset.from_tensor_slices((tf.cast(X, dtype), Y)).batch(size)


def make(units=16, layers=1, rate=0.1, has_input=True, optimizer=None, **options):
    with strategy.scope():
        parts = [keras.layers.Input((8,))] if has_input else []
        parts += [keras.layers.Dense(units) for _ in range(layers)] + [keras.layers.Dense(3)]
        model = keras.Sequential(parts)
        optimizer = optimizer() if optimizer else keras.optimizers.SGD(rate)
        model.compile(optimizer, **{"loss": "mse", **options})
    return model


def seeded(seed):
    tf.random.set_seed(seed)
    try:
        model.fit(batches(), verbose=0)
    finally:
        tf.random.set_seed(1)


model = make()
model.fit(batches(), verbose=0)
attempts = {
    "units": lambda: make(units=16 + rank),
    "layers": lambda: make(layers=1 + rank).fit(batches()),
    "units without a shape": lambda: make(units=16 + rank, has_input=False).fit(batches()),
    "learning rate": lambda: make(rate=0.1 * (1 + rank)),
    "momentum": lambda: make(optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.5 + rank / 4)).fit(batches()),
    "loss": lambda: make(loss=["mse", "mae"][rank]).fit(batches()),
    "steps and epochs": lambda: model.fit(batches(), steps_per_epoch=2 + rank, epochs=3 + rank),
    "batch": lambda: model.fit(batches(8 + 8 * rank)),
    "batch of arrays": lambda: model.fit(X, Y, batch_size=8 + 8 * rank),
    "length": lambda: model.fit(batches().take(3 - rank)),
    "dtype": lambda: model.fit(batches(dtype=["float32", "float64"][rank])),
    "seed": lambda: seeded(3 + rank),
    "callbacks": lambda: model.fit(batches(), callbacks=[keras.callbacks.EarlyStopping("loss")][rank:]),
    "method": lambda: (model.evaluate if rank else model.fit)(batches()),
    "evaluate": lambda: model.evaluate(batches(), steps=1 + rank),
    "train_on_batch": lambda: make(metrics=[["mae"], ["mse"]][rank]).train_on_batch(X, Y),
}
messages = {}
for name, attempt in attempts.items():
    try:
        attempt()
        messages[name] = "no error"
    except Exception as error:
        messages[name] = f"{type(error).__name__}: {error}"
# Pipelines of unequal lengths are no disagreement. The first evaluation belongs to fit. Keras 2 needs the steps.
unequal = strategy.distribute_datasets_from_function(lambda context: batches(4).take(4 + 3 * rank))
steps = 7 if "keras.src.engine" in keras.Model.__module__ else None
# Nor is a callback that only writes.
writes = [keras.callbacks.CSVLogger("log.csv")][rank:]
history = model.fit(
    unequal, epochs=2, steps_per_epoch=steps, verbose=0, validation_data=batches(), callbacks=writes
).history
losses = history["val_loss"]
single = [model.train_on_batch(X, Y) for _ in range(2)]
with open(f"result-{rank}", "w") as file:
    json.dump([messages, losses, len(single)], file)
"""

RECEIVED = "ValueError: expected the same training on all workers, received: "
DIFFERENCES = {
    "units": "worker 1 makes the variable kernel (8, 17) float32, worker 0 makes the variable kernel (8, 16) float32.",
    "layers": "worker 1 makes the variable kernel (16, 16) float32, worker 0 makes the variable kernel (16, 3) "
    "float32.",
    "units without a shape": "worker 1 has the layer Dense(units=17), worker 0 has the layer Dense(units=16).",
    "learning rate": "worker 1 has SGD(learning_rate=0.2), worker 0 has SGD(learning_rate=0.1).",
    "momentum": "worker 1 has SGD(momentum=0.75), worker 0 has SGD(momentum=0.5).",
    "loss": "worker 1 has loss=mae, worker 0 has loss=mse.",
    "steps and epochs": "worker 1 has epochs=4, worker 0 has epochs=3; worker 1 has steps_per_epoch=3, worker 0 has "
    "steps_per_epoch=2.",
    "batch": "worker 1 has steps_per_epoch=2, worker 0 has steps_per_epoch=4; worker 1 has global_batch_size=16, "
    "worker 0 has global_batch_size=8.",
    "batch of arrays": "worker 1 has steps_per_epoch=2, worker 0 has steps_per_epoch=4; worker 1 has "
    "global_batch_size=16, worker 0 has global_batch_size=8.",
    "length": "worker 1 has steps_per_epoch=2, worker 0 has steps_per_epoch=3.",
    "dtype": "worker 1 has the data 0: dense float64 (batch, 8), worker 0 has the data 0: dense float32 (batch, 8).",
    "seed": "worker 1 has seed=4, worker 0 has seed=3.",
    "callbacks": "worker 1 has no EarlyStopping, worker 0 has EarlyStopping.",
    "method": "worker 1 calls evaluate, worker 0 calls fit.",
    "evaluate": "worker 1 has steps=2, worker 0 has steps=1.",
    "train_on_batch": "worker 1 has metrics=[mse], worker 0 has metrics=[mae].",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list:
    folder: Path = tmp_path_factory.mktemp("disagreement")
    (folder / "program.py").write_text(PROGRAM)
    assert launch("--workers", "2", "--", "program.py", cwd=folder, deadline_seconds=240).code == 0
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", DIFFERENCES)
def test_both_workers_are_told_what_differs_before_the_first_step(results: list, name: str) -> None:
    assert [messages[name] for messages, *_ in results] == [RECEIVED + DIFFERENCES[name]] * 2


def test_after_all_disagreements_the_workers_train_together(results: list) -> None:
    (_, first, steps), (_, second, _) = results
    assert (len(first), steps) == (2, 2)
    assert first == second
