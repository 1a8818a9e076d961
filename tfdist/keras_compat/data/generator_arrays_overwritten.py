"""Mends data from Python on several devices: TensorFlow computes in the memory of the program's own arrays.

tf.data takes an array that a generator, a PyDataset or a numpy_function returns without copying its memory. TensorFlow
does not count the program as an owner of that memory, so that an operation on a replica may write its result there. The
array of the program is overwritten without a word, and the next epoch trains on other data. With the mend the array is
copied.

Source: FuncRegistry._convert in TensorFlow's script_ops.py. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from tensorflow.python.ops import script_ops

    return ".copy(" not in inspect.getsource(script_ops.FuncRegistry)


def _apply() -> None:
    from tensorflow.python.ops import script_ops

    stock = script_ops.FuncRegistry._convert

    def convert(value: Any, dtype: Any = None) -> Any:
        result = stock(value, dtype=dtype)
        if isinstance(value, np.ndarray) and isinstance(result, np.ndarray) and np.may_share_memory(value, result):
            return result.copy()
        return result

    script_ops.FuncRegistry._convert = staticmethod(convert)


MEND = Mend(
    name="generator_arrays_overwritten",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="arrays that a generator or a PyDataset yields are overwritten by results of a replica: the data change",
    without_row="it depends on the addresses of the arrays",
)
