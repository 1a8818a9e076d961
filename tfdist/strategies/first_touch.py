"""Finds out what started TensorFlow's runtime before the strategy was made.

Strategies of several processes, and logical devices, must be configured before the first operation runs. If they are
not, TensorFlow only says "Collective ops must be configured at program startup".
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tfdist._installed import is_installed_code

_LIMIT = 3


def find_tensorflow_objects() -> list[str]:
    """Returns descriptions of the TensorFlow objects in the program's modules; objects of `__main__` come first.

    Example:
        >>> from tfdist.strategies.first_touch import find_tensorflow_objects
        >>> isinstance(find_tensorflow_objects(), list)
        True
    """
    # `__mp_main__` of multiprocessing is the same module as `__main__`.
    own = [name for name in sys.modules if name == "__main__" or not (name == "__mp_main__" or _is_library(name))]
    found = []
    for module_name in sorted(own, key=lambda name: (name != "__main__", name)):
        for name, value in list(vars(sys.modules[module_name]).items()):
            kind = _kind(value)
            if kind:
                found.append(f"{kind} `{name}` in {module_name}")
    return found


def explain_late_start(error: Exception) -> str:
    """Returns one sentence that names the objects that started TensorFlow, and says what to do.

    Args:
        error: the error that TensorFlow raised.
    """
    found = find_tensorflow_objects()
    if not found:
        what = "an operation, a variable or a device query whose result no module holds any more"
    else:
        what = ", ".join(found[:_LIMIT]) + (f" and {len(found) - _LIMIT} more" if len(found) > _LIMIT else "")
    return (
        f"TensorFlow was started by: {what}; make the strategy earlier, before any tensor, variable, dataset or "
        f"model is made (TensorFlow said: {error})"
    )


def _is_library(name: str) -> bool:
    module = sys.modules[name]
    file = getattr(module, "__file__", None)
    return file is None or is_installed_code(file) or file.startswith(sys.base_prefix)


def _kind(value: Any) -> str | None:
    # Keras's objects are recognised by the names of their types, so that neither Keras nor tf_keras has to be imported.
    try:
        if isinstance(value, type):
            return None
        if isinstance(value, tf.Variable):
            return "the variable"
        if isinstance(value, tf.Tensor):
            return "the tensor"
        if isinstance(value, tf.data.Dataset):
            return "the dataset"
        bases = {f"{base.__module__.split('.')[0]}.{base.__name__}" for base in type(value).__mro__}
    except Exception:
        # A module may hold objects whose class refuses inspection; TensorFlow and Keras have no such classes.
        return None
    # Layer comes last: in Keras 2 a metric is also a layer, and in both versions a model is also a layer.
    kinds = {"Model": "the model", "Metric": "the metric", "Optimizer": "the optimizer", "Layer": "the layer"}
    for name, kind in kinds.items():
        if bases & {f"keras.{name}", f"tf_keras.{name}"}:
            return kind
    return None
