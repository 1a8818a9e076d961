"""The random numbers that a step draws itself, such as those of a layer of the program or of its train_step."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.verify.layers import is_noisy

# Functions of TensorFlow on which all other functions and layers that draw such numbers are built.
_MODULES = ("gen_random_ops", "gen_stateless_random_ops_v2")
_NORMAL = ("random_standard_normal", "truncated_normal", "stateless_random_normal_v2", "stateless_truncated_normal_v2")
_UNIFORM = ("random_uniform", "stateless_random_uniform_v2")
_WHOLE = ("random_uniform_int", "stateless_random_uniform_int_v2")
_PACKAGES = {"contextlib", "keras", "tf_keras", "tensorflow", "tfdist"}


class RandomNumbers:
    """Notes where a step draws random numbers, and can replace them with their middle.

    Args:
        places: takes the functions, and the layers of Keras, that draw random numbers in a step. Layers that are known
            to draw, such as Dropout, are left out.
    """

    def __init__(self, places: list[str]) -> None:
        self._places = places
        self._local = threading.local()

    def install(self) -> None:
        """Patches the functions of TensorFlow that draw random numbers."""
        for name in _MODULES:
            module = importlib.import_module(f"tensorflow.python.ops.{name}")
            for function in (*_NORMAL, *_UNIFORM, *_WHOLE):
                if hasattr(module, function):
                    setattr(module, function, self._watching(getattr(module, function), function))

    @contextlib.contextmanager
    def of_step(self, *, removes: bool) -> Iterator[None]:
        """Watches the random numbers that this thread draws.

        Args:
            removes: whether to replace them: normal numbers with their mean, and uniform ones with their middle.
        """
        earlier = getattr(self._local, "removes", None)
        self._local.removes = removes
        try:
            yield
        finally:
            self._local.removes = earlier

    def _watching(self, stock: Callable, name: str) -> Callable:
        signature = inspect.signature(stock)

        @functools.wraps(stock)
        def draw(*args: Any, **kwargs: Any) -> Any:
            drawn = stock(*args, **kwargs)
            removes = getattr(self._local, "removes", None)
            if removes is None:
                return drawn
            place = _place(sys._getframe(1))
            if place and place not in self._places:
                self._places.append(place)
            if not removes:
                return drawn
            if name in _WHOLE:
                given = signature.bind(*args, **kwargs).arguments
                return tf.zeros_like(drawn) + tf.cast((given["minval"] + given["maxval"]) // 2, drawn.dtype)
            return tf.zeros_like(drawn) + (0.5 if name in _UNIFORM else 0)

        return draw


def _place(frame: FrameType | None) -> str:
    """Returns the function of the program, or the layer of Keras, that draws; "" for a layer that is known to draw."""
    found = ""
    kinds = keras().layers.Layer, keras().Model
    while frame is not None:
        owner = frame.f_locals.get("self")
        # isinstance() would ask lazily imported modules for their class.
        is_layer = issubclass(type(owner), kinds[0]) and not issubclass(type(owner), kinds[1])
        if is_layer and is_noisy(owner):
            return ""
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if not found and package not in _PACKAGES:
            path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
            # AutoGraph compiles a changed copy of the function from a file of its own.
            is_copy = path.name.startswith("__autograph_generated")
            found = name.removeprefix("tf__") if is_copy else f"{name} ({path.name}, line {frame.f_lineno})"
        elif not found and is_layer and owner is not None:
            found = f"{owner.name} ({type(owner).__name__})"
        frame = frame.f_back
    return found
