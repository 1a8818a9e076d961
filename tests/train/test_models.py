from __future__ import annotations

import re
import sys
import types

import numpy as np
import pytest

from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.version import keras
from tfdist.train.models import build_model


@pytest.fixture
def policy():
    before = (
        keras().mixed_precision.global_policy() if keras_in_use().name != "keras3" else keras().config.dtype_policy()
    )
    yield keras().mixed_precision.set_global_policy
    keras().mixed_precision.set_global_policy(before)


@pytest.fixture
def own_models(monkeypatch):
    module = types.ModuleType("own_models")

    def tiny(*, image_shape, num_classes):
        layers = keras().layers
        return keras().Sequential(
            [layers.Input(image_shape), layers.Flatten(), layers.BatchNormalization(), layers.Dense(num_classes)]
        )

    module.tiny = tiny
    monkeypatch.setitem(sys.modules, "own_models", module)


def batch_norms(model):
    return [layer for layer in model.layers if isinstance(layer, keras().layers.BatchNormalization)]


@pytest.mark.parametrize("name", ["mlp", "cnn", "own_models:tiny"])
def test_images_become_logits(name, own_models):
    model = build_model(name, image_shape=(8, 10, 3), num_classes=7)
    assert model.output_shape == (None, 7)
    logits = model(np.full((2, 8, 10, 3), 255.0, np.float32)).numpy()
    assert logits.shape == (2, 7)
    assert logits.dtype == np.float32


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_logits_are_float32_under_mixed_precision(name, precision, policy):
    policy(precision)
    model = build_model(name, image_shape=(8, 8, 1), num_classes=3)
    hidden = [layer for layer in model.layers if isinstance(layer, keras().layers.Dense)]
    assert hidden[0].compute_dtype == precision.removeprefix("mixed_")
    assert hidden[-1].compute_dtype == "float32"
    assert model(np.zeros((1, 8, 8, 1), np.float32)).numpy().dtype == np.float32


@pytest.mark.parametrize("name", ["cnn", "own_models:tiny"])
def test_synchronized_batch_norm_changes_nothing_else(name, own_models):
    plain = build_model(name, image_shape=(8, 8, 1), num_classes=3)
    synchronized = build_model(name, image_shape=(8, 8, 1), num_classes=3, sync_batch_norm=True)
    assert [layer.synchronized for layer in batch_norms(plain)] == [False] * len(batch_norms(plain))
    assert [layer.synchronized for layer in batch_norms(synchronized)] == [True] * len(batch_norms(plain))
    assert [weight.shape for weight in synchronized.get_weights()] == [weight.shape for weight in plain.get_weights()]
    assert [layer.__class__ for layer in synchronized.layers] == [type(layer) for layer in plain.layers]
    if name == "cnn":
        assert [layer.momentum for layer in batch_norms(synchronized)] == [0.9, 0.9]


def test_resnet50_has_synchronized_batch_norm_and_float32_logits():
    model = build_model("resnet50", image_shape=(32, 32, 3), num_classes=5, sync_batch_norm=True)
    assert model.output_shape == (None, 5)
    assert model.layers[-1].compute_dtype == "float32"
    assert {layer.synchronized for layer in batch_norms(model)} == {True}
    assert len(batch_norms(model)) > 40


def test_resnet50_refuses_small_images():
    message = "expected images of at least 32 x 32 for resnet50, received 8 x 40; use cnn, or larger images."
    with pytest.raises(ValueError, match=re.escape(message)):
        build_model("resnet50", image_shape=(8, 40, 1), num_classes=10)


def test_sync_batch_norm_is_refused_for_a_model_without_batch_norm():
    message = "expected a model with batch normalization, received the model 'mlp' without it."
    with pytest.raises(ValueError, match=re.escape(message)):
        build_model("mlp", image_shape=(8, 8, 1), num_classes=10, sync_batch_norm=True)


@pytest.mark.parametrize("name", ["vgg", "own_models.tiny", "own_models:", ""])
def test_an_unknown_name_is_refused(name, own_models):
    message = f"expected one of the models mlp, cnn, resnet50, or package.module:function, received {name!r}."
    with pytest.raises(ValueError, match=re.escape(message)):
        build_model(name, image_shape=(8, 8, 1), num_classes=10)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:build", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("own_models:build", "AttributeError: module 'own_models' has no attribute 'build'"),
    ],
)
def test_a_model_that_cannot_be_imported_is_refused(name, why, own_models):
    message = (
        f"expected the model {name!r} to be importable, received {why}; "
        "check the name, and that PYTHONPATH contains the folder of the module."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        build_model(name, image_shape=(8, 8, 1), num_classes=10)
