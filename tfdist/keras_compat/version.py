"""Which Keras is in use: Keras 3, tf_keras, or the Keras 2.15 of TensorFlow 2.15.

What `tf.keras` is decides, since that is what a program that asks TensorFlow for Keras gets.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from types import ModuleType
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class KerasInUse:
    """Which Keras `tf.keras` is.

    Attributes:
        name: "keras3", "tf_keras" or "keras2".
        version: its version, such as "3.15.1".
        engine: the package that holds its Model, for mends of Keras 2: "tf_keras.src.engine" or "keras.src.engine".
    """

    name: str
    version: str
    engine: str

    @property
    def is_keras3(self) -> bool:
        """Whether it is Keras 3."""
        return self.name == "keras3"

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, such as (3, 15)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


@functools.cache
def keras_in_use() -> KerasInUse:
    """Returns which Keras is in use.

    Raises:
        ValueError: if Keras runs on another backend than TensorFlow.
        ImportError: if TF_USE_LEGACY_KERAS asks for tf_keras and it is not installed.

    Example:
        >>> from tfdist.keras_compat import keras_in_use
        >>> keras_in_use().name in ("keras3", "tf_keras", "keras2")
        True
    """
    try:
        module = tf.keras.Model.__module__
    except ImportError as error:
        raise _import_error(error) from error
    package = module.split(".")[0]
    if package == "tf_keras":
        return KerasInUse("tf_keras", _version("tf_keras"), "tf_keras.src.engine")
    version = _version("keras")
    if version.startswith("2."):
        return KerasInUse("keras2", version, "keras.src.engine")
    backend = tf.keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(
            f"expected Keras to run on the TensorFlow backend, received the backend {backend!r}; "
            "set KERAS_BACKEND=tensorflow or leave it unset."
        )
    return KerasInUse("keras3", version, "keras.src.trainers")


def keras() -> Any:
    """Returns the Keras module in use, after checking that tfdist can work with it."""
    keras_in_use()
    return tf.keras


def trainer_class() -> Any:
    """Returns the class whose `compile`, `fit` and `evaluate` every model of the Keras in use inherits."""
    if keras_in_use().is_keras3:
        return importlib.import_module("keras.src.backend.tensorflow.trainer").TensorFlowTrainer
    return engine_module("training").Model


def engine_module(name: str) -> ModuleType:
    """Returns a module of Keras 2's engine, such as "training" or "data_adapter"."""
    return importlib.import_module(f"{keras_in_use().engine}.{name}")


def _version(package: str) -> str:
    return str(importlib.import_module(package).__version__)


def _import_error(error: ImportError) -> Exception:
    # TensorFlow raises an error of its own in the place of the one that names the missing package.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ImportError) and cause.name in ("jax", "jaxlib", "torch", "openvino"):
            return ValueError(
                f"expected Keras to run on the TensorFlow backend, received a backend that needs {cause.name}; "
                "set KERAS_BACKEND=tensorflow or leave it unset."
            )
        cause = cause.__cause__ or cause.__context__
    return ImportError(
        f"expected an installed Keras, received: {error}; with TF_USE_LEGACY_KERAS=1 install tfdist[tf-keras]."
    )
