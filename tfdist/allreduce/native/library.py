"""The libraries of the package tfdist-native, loaded when they are first needed."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from typing import Any

import tensorflow as tf

PROTOCOL = 4
"""Which protocol of tfdist-native this code was written for."""

NOT_INSTALLED = "tfdist-native is not installed"

_TEXT, _SIZE = ctypes.c_char_p, ctypes.c_int
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tfdist_listen": (ctypes.c_void_p, [_TEXT, ctypes.c_int, _TEXT, _TEXT, _SIZE]),
    "tfdist_address": (None, [ctypes.c_void_p, _TEXT, _SIZE]),
    "tfdist_stop_listening": (None, [ctypes.c_void_p]),
    "tfdist_connect": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int, _TEXT, ctypes.c_double, _TEXT, _SIZE]),
    "tfdist_close": (None, [ctypes.c_int64]),
    "tfdist_replace": (None, [ctypes.c_int64, ctypes.c_int64]),
    "tfdist_abort": (ctypes.c_int, [ctypes.c_int64, ctypes.c_int, _TEXT]),
    "tfdist_bytes_sent": (ctypes.c_uint64, [ctypes.c_int64]),
}


def is_installed() -> bool:
    """Returns whether this process can import tfdist-native.

    Example:
        >>> from tfdist.allreduce.native.library import is_installed
        >>> is_installed() in (True, False)
        True
    """
    return importlib.util.find_spec("tfdist_native") is not None


@functools.cache
def why_missing() -> str:
    """Returns why the native transport cannot be used in this process; "" if it can.

    Example:
        >>> from tfdist.allreduce.native.library import why_missing
        >>> isinstance(why_missing(), str)
        True
    """
    if not is_installed():
        return NOT_INSTALLED
    import tfdist_native

    if tfdist_native.PROTOCOL != PROTOCOL:
        return f"tfdist-native {tfdist_native.__version__} is of another release of tfdist"
    try:
        library(), operations()
    except (OSError, AttributeError, tf.errors.OpError) as error:
        return f"tfdist-native cannot be loaded: {error}"
    missing = ctypes.CDLL(str(tfdist_native.OPERATIONS)).tfdist_missing_of_tensorflow
    missing.restype = ctypes.c_char_p
    name = missing()
    return f"TensorFlow {tf.__version__} has no function {name.decode()}" if name else ""


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the transport, whose functions are declared in native/cpp/c_api.h.

    Raises:
        ImportError: if tfdist-native is not installed.
        OSError: if the library cannot be loaded.
    """
    import tfdist_native

    loaded = ctypes.CDLL(str(tfdist_native.LIBRARY))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


@functools.cache
def operations() -> Any:
    """Returns the module with the operations tfdist_start and tfdist_wait.

    Raises:
        ImportError: if tfdist-native is not installed.
        tf.errors.NotFoundError: if the library cannot be loaded.
    """
    import tfdist_native

    return tf.load_op_library(str(tfdist_native.OPERATIONS))
