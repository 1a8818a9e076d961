from __future__ import annotations

import os
import re
import types

import numpy as np
import pytest

from tfdist import create_strategy
from tfdist.keras_compat import is_chief, keras, save_model


def build(strategy=None):
    layers = keras().layers

    def make():
        model = keras().Sequential([layers.Input((2,)), layers.Dense(3), layers.BatchNormalization()])
        model.compile("adam", "mse")
        return model

    if strategy is None:
        return make()
    with strategy.scope():
        return make()


class Failing:
    """A model whose save writes half a file and then fails."""

    distribute_strategy = types.SimpleNamespace(extended=types.SimpleNamespace(should_checkpoint=True))

    def save(self, path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError("no space left")


class Follower(Failing):
    """The model of a worker that is not the chief."""

    distribute_strategy = types.SimpleNamespace(extended=types.SimpleNamespace(should_checkpoint=False))

    def __init__(self):
        self.saved = []

    def save(self, path):
        self.saved.append(path)
        with open(path, "w") as file:
            file.write("mine")


@pytest.mark.parametrize(
    ("name", "options"), [(None, {}), ("one_device", {}), ("mirrored", {"devices": 2}), ("multi_worker_mirrored", {})]
)
def test_a_saved_model_is_one_file_that_loads(name, options, tmp_path):
    model = build(name and create_strategy(name, **options))
    path = str(tmp_path / "new" / "folder" / "model.keras")
    save_model(model, path)
    assert os.listdir(os.path.dirname(path)) == ["model.keras"]
    for mine, saved in zip(model.get_weights(), keras().models.load_model(path).get_weights(), strict=True):
        np.testing.assert_array_equal(mine, saved)


def test_a_name_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(build(), "model.keras")
    assert os.listdir(tmp_path) == ["model.keras"]


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    save_model(build(), str(path))
    assert os.listdir(tmp_path) == ["model.keras"]
    keras().models.load_model(str(path))


@pytest.mark.parametrize("name", ["model", "model.h5", "model.keras.zip", "model.KERAS"])
def test_a_name_that_does_not_end_in_keras_is_refused(name, tmp_path):
    path = str(tmp_path / name)
    message = f"expected a file name that ends in .keras, received {path!r}; append .keras."
    with pytest.raises(ValueError, match=re.escape(message)):
        save_model(build(), path)
    assert os.listdir(tmp_path) == []


def test_a_save_that_fails_leaves_the_old_file_and_no_scratch(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(OSError, match="no space left"):
        save_model(Failing(), str(path))
    assert os.listdir(tmp_path) == ["model.keras"]
    assert path.read_text() == "old"


def test_a_worker_that_is_not_the_chief_takes_part_and_keeps_nothing(tmp_path):
    model = Follower()
    save_model(model, str(tmp_path / "model.keras"))
    assert len(model.saved) == 1
    assert os.listdir(tmp_path) == []


def test_the_only_process_is_the_chief():
    for name in ("one_device", "mirrored", "central_storage", "multi_worker_mirrored"):
        assert is_chief(create_strategy(name))
    assert is_chief(types.SimpleNamespace(extended=object()))
    assert not is_chief(Follower.distribute_strategy)
