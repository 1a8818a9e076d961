"""keras_in_use finds the Keras in use, and refuses a Keras that tfdist cannot work with."""

from __future__ import annotations

import json
import os
from importlib import metadata

import keras as installed_keras
import pytest
import tensorflow as tf

from tfdist.keras_compat import KerasInUse, keras_in_use
from tfdist.keras_compat.version import _import_error, engine_module, keras

TRY = """
import json
try:
    from tfdist.keras_compat import keras_in_use
    print(json.dumps(["found", keras_in_use().name]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def expected_name():
    # Unlike keras_in_use, this function decides by the environment variable and the installed versions.
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True") and not tf.__version__.startswith("2.15"):
        return "tf_keras"
    return "keras3" if installed_keras.__version__.startswith("3.") else "keras2"


def test_the_keras_in_use_is_that_of_this_environment():
    found = keras_in_use()
    assert found.name == expected_name()
    assert found.is_keras3 is (found.name == "keras3")
    assert found.version == metadata.version("tf_keras" if found.name == "tf_keras" else "keras")
    assert found.release == tuple(map(int, found.version.split(".")[:2]))
    assert keras() is tf.keras


def test_the_engine_of_keras_is_found():
    if keras_in_use().is_keras3:
        assert keras_in_use().engine == "keras.src.trainers"
        assert hasattr(engine_module("trainer"), "Trainer")
    else:
        assert engine_module("training").Model is tf.keras.Model


@pytest.mark.parametrize(("version", "release"), [("3.15.1", (3, 15)), ("2.15.0", (2, 15)), ("3.16.0.dev1", (3, 16))])
def test_the_release_is_major_and_minor(version, release):
    assert KerasInUse("keras3", version, "").release == release


def test_another_backend_is_refused_in_one_sentence(children):
    finished = children.run(TRY, env={"KERAS_BACKEND": "jax"})
    if keras_in_use().is_keras3:
        result = [
            "ValueError",
            "expected Keras to run on the TensorFlow backend, received a backend that needs jax; "
            "set KERAS_BACKEND=tensorflow or leave it unset.",
        ]
    else:
        # Keras 2 has no other backend.
        result = ["found", keras_in_use().name]
    assert json.loads(finished.out) == result


def test_another_backend_that_is_installed_is_refused(monkeypatch):
    if not keras_in_use().is_keras3:
        # Keras 2 has no other backend, and no function that returns its name.
        assert not hasattr(tf.keras, "config")
        return
    monkeypatch.setattr(tf.keras.config, "backend", lambda: "torch")
    keras_in_use.cache_clear()
    with pytest.raises(ValueError, match="TensorFlow backend, received the backend 'torch'; set KERAS_BACKEND="):
        keras_in_use()


@pytest.mark.parametrize("name", ["jax", "jaxlib", "torch", "openvino"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_missing_package_of_another_backend_is_named(name, wrapped):
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)
    if wrapped:
        outer = ImportError("Keras cannot be imported. Check that it is installed.")
        outer.__context__ = error
        error = outer
    told = _import_error(error)
    assert type(told) is ValueError
    assert f"received a backend that needs {name}; set KERAS_BACKEND=tensorflow" in str(told)


def test_a_missing_keras_is_named():
    told = _import_error(ImportError("Keras cannot be imported."))
    assert type(told) is ImportError
    release = ".".join(tf.__version__.split(".")[:2])
    assert str(told) == (
        "expected Keras to be installed, received: Keras cannot be imported.; if TF_USE_LEGACY_KERAS=1 is set, run pip "
        f"install --no-deps 'tf_keras=={release}.*'."
    )
