"""Makes a program compute in the type of a verification, whatever types it asks for itself."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from tfdist.keras_compat.version import keras

_SETTERS = {
    "backend": ("set_floatx",),
    "config": ("set_dtype_policy", "set_floatx"),
    "mixed_precision": ("set_dtype_policy", "set_global_policy"),
}
_NARROW = {"float16", "bfloat16", "float32", "mixed_float16", "mixed_bfloat16"}


def compute_in(floatx: str) -> None:
    """Sets the type of all layers, and lets calls of the program that set another one do nothing.

    Rounding to float16 or bfloat16 would hide small differences, and look like large ones. For the same reason a layer
    that asks for float32 itself, as the last layer of a program with mixed precision does, computes in float64.

    Args:
        floatx: "float64" or "float32".
    """
    package = keras()
    package.backend.set_floatx(floatx)
    package.mixed_precision.set_global_policy(floatx)
    for module, names in _SETTERS.items():
        for name in names:
            # Keras 2 has no `config`.
            if hasattr(getattr(package, module, None), name):
                setattr(getattr(package, module), name, _ignore)
    layer = package.layers.Layer
    make = layer.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if _name_of(kwargs.get("dtype")) in _NARROW:
            kwargs["dtype"] = floatx
        make(self, *args, **kwargs)

    # Keras reads the arguments of a layer's __init__, and does not look through wrappers everywhere.
    vars(init)["__signature__"] = inspect.signature(make)
    layer.__init__ = init


def _ignore(value: Any) -> None:
    """Takes the place of a function that sets the type of layers."""


def _name_of(dtype: Any) -> str | None:
    """Returns the name of a type or of a policy, which may be a configuration as `get_config` returns it."""
    if isinstance(dtype, dict):
        dtype = dtype.get("config", {}).get("name")
    return dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
