"""The models of `tfdist train`, by name. The last layer of each model returns logits."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.version import keras
from tfdist.layers import convert_sync_batchnorm

Shape = tuple[int, int, int]


def build_model(name: str, *, image_shape: Shape, num_classes: int, sync_batch_norm: bool = False) -> Any:
    """Returns a Keras model that maps images with pixels from 0 to 255 to float32 logits.

    Args:
        name: "mlp", "cnn", "resnet50", or "package.module:function", a function that takes the keyword arguments
            image_shape and num_classes and returns a functional or Sequential model.
        image_shape: height, width and channels.
        num_classes: number of labels.
        sync_batch_norm: whether batch normalization uses the statistics of the global batch.

    Raises:
        ValueError: for an unknown name, and for sync_batch_norm with a model that has no batch normalization.

    Example:
        >>> from tfdist.train.models import build_model
        >>> build_model("mlp", image_shape=(8, 8, 1), num_classes=10).output_shape
        (None, 10)
    """
    builders: dict[str, Callable[..., Any]] = {"mlp": _mlp, "cnn": _cnn, "resnet50": _resnet50}
    build = builders.get(name) or _import(name, known=tuple(builders))
    model = build(image_shape=image_shape, num_classes=num_classes)
    return convert_sync_batchnorm(model) if sync_batch_norm else model


def _import(name: str, *, known: tuple[str, ...]) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(
            f"expected one of the models {', '.join(known)}, or package.module:function, received {name!r}."
        )
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"expected the model {name!r} to be importable, received {type(error).__name__}: {error}; "
            "check the name, and that PYTHONPATH contains the folder of the module."
        ) from error


def _mlp(*, image_shape: Shape, num_classes: int) -> Any:
    layers = keras().layers
    return keras().Sequential(
        [
            layers.Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            _logits(num_classes),
        ],
        name="mlp",
    )


def _cnn(*, image_shape: Shape, num_classes: int) -> Any:
    layers = keras().layers
    blocks: list[Any] = []
    for filters in (32, 64):
        blocks += [
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.Activation("relu"),
            layers.MaxPooling2D(2),
        ]
    return keras().Sequential(
        [
            layers.Input(image_shape),
            layers.Rescaling(1 / 255),
            *blocks,
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            _logits(num_classes),
        ],
        name="cnn",
    )


def _resnet50(*, image_shape: Shape, num_classes: int) -> Any:
    height, width, _ = image_shape
    if min(height, width) < 32:
        raise ValueError(
            f"expected images of at least 32 x 32 for resnet50, received {height} x {width}; use cnn, or larger images."
        )
    layers = keras().layers
    images = layers.Input(image_shape)
    backbone = keras().applications.ResNet50(
        weights=None, include_top=False, pooling="avg", input_tensor=layers.Rescaling(1 / 127.5, offset=-1)(images)
    )
    return keras().Model(images, _logits(num_classes)(backbone.output), name="resnet50")


def _logits(num_classes: int) -> Any:
    # Logits are float32 under mixed precision too, so that the loss is precise.
    return keras().layers.Dense(num_classes, dtype="float32", name="logits")
