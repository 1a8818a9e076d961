"""Programs and files of TensorFlow Addons, in the environment that has TensorFlow Addons."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.migration.changes import PROGRAMS
from tests.migration.test_migration import DEADLINE_SECONDS, run_seeded, weights
from tests.processes import run

pytest.importorskip("tensorflow_addons", reason="TensorFlow Addons supports TensorFlow up to 2.15")

LOADED = """
load_model model.h5: weights loaded, steps of the optimizer: 1
load_model model.keras: weights loaded, steps of the optimizer: 0
load_model saved_model: weights loaded, steps of the optimizer: 0
load_without_optimizer model.h5: weights loaded, steps of the optimizer: 0
load_without_optimizer model.keras: weights loaded, steps of the optimizer: 0
load_weights w.weights.h5: weights loaded, steps of the optimizer: 0
load_weights weights/w: ValueError: You are trying to restore a checkpoint from a legacy Keras optimizer
restore checkpoint: ValueError: You are trying to restore a checkpoint from a legacy Keras optimizer
"""


def test_the_migrated_program_trains_the_same_weights(tmp_path: Path) -> None:
    saved = []
    for version in ("before", "after"):
        assert run_seeded(PROGRAMS / "addons" / f"{version}.py", tmp_path / version).code == 0
        saved.append(weights(tmp_path / version / "digits.keras"))
    for one, two in zip(*saved, strict=True):
        assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max()


def test_files_are_loaded_as_the_page_says(tmp_path: Path) -> None:
    for program in ("save_files.py", "load_files.py"):
        command = [sys.executable, str(PROGRAMS / "addons" / program)]
        finished = run(command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
        assert finished.code == 0
    for line in LOADED.strip().splitlines():
        assert line in finished.text


SAVE = """
import numpy as np, tensorflow as tf, tensorflow_addons as tfa

rng = np.random.default_rng(0)
data = {"x": rng.normal(size=(8, 3)), "y": rng.normal(size=(8, 2)), "shuffle": False, "epochs": 5, "verbose": 0}
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
model.compile(tfa.optimizers.LAMB(0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"]), "mse")
model.fit(**data)
model.save("model.h5")
model.fit(**data)
np.save("kernel.npy", model.get_weights()[0])
"""
# The class that is registered by an import of TensorFlow Addons would be used in place of that in custom_objects.
GO_ON = """
import numpy as np, tensorflow as tf
from tfdist.optimizers import LAMB

rng = np.random.default_rng(0)
data = {"x": rng.normal(size=(8, 3)), "y": rng.normal(size=(8, 2)), "shuffle": False, "epochs": 5, "verbose": 0}
model = tf.keras.models.load_model("model.h5", custom_objects={"Addons>LAMB": LAMB})
assert isinstance(model.optimizer, LAMB)
assert int(model.optimizer.iterations) == 5
model.fit(**data)
np.testing.assert_allclose(model.get_weights()[0], np.load("kernel.npy"), rtol=1e-5)
"""


def test_training_goes_on_from_an_h5_file_as_with_addons(tmp_path: Path) -> None:
    for program in (SAVE, GO_ON):
        (tmp_path / "program.py").write_text(program)
        assert run([sys.executable, "program.py"], cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS).code == 0
