"""Finds the Keras in use: Keras 3, tf_keras, or the Keras 2.15 of TensorFlow 2.15.

The Keras in use is the package that `tf.keras` refers to.
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
    """The Keras package that `tf.keras` refers to.

    Attributes:
        name: "keras3", "tf_keras" or "keras2".
        version: version of the package, such as "3.15.1".
        engine: package that defines Model in Keras 2: "tf_keras.src.engine" or "keras.src.engine". With Keras 3 it is
            "keras.src.trainers".

    Example:
        >>> from tfdist.keras_compat import KerasInUse
        >>> KerasInUse("keras3", "3.15.1", "keras.src.trainers").release
        (3, 15)
    """

    name: str
    version: str
    engine: str

    @property
    def is_keras3(self) -> bool:
        """Whether the Keras in use is Keras 3."""
        return self.name == "keras3"

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, such as (3, 15)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


@functools.cache
def keras_in_use() -> KerasInUse:
    """Returns the name and the version of the Keras in use.

    Raises:
        ValueError: if the backend of Keras is not TensorFlow.
        ImportError: if TF_USE_LEGACY_KERAS=1 is set and tf_keras is not installed.

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
    """Returns the Keras module in use, after checking that tfdist supports it."""
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
    # TensorFlow raises its own error; the error that names the missing package is the cause or context of that error.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ImportError) and cause.name in ("jax", "jaxlib", "torch", "openvino"):
            return ValueError(
                f"expected Keras to run on the TensorFlow backend, received a backend that needs {cause.name}; "
                "set KERAS_BACKEND=tensorflow or leave it unset."
            )
        cause = cause.__cause__ or cause.__context__
    # Without dependencies: tf_keras depends on the package tensorflow, which may not be the one that is installed.
    release = ".".join(tf.__version__.split(".")[:2])
    return ImportError(
        f"expected Keras to be installed, received: {error}; if TF_USE_LEGACY_KERAS=1 is set, run pip install "
        f"--no-deps 'tf_keras=={release}.*'."
    )
