"""Checks and cuts the arrays that tfdist.verify trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def first_rows(data: Any, rows: int) -> Any:
    """Returns the first rows of all arrays in a structure. Lists become tuples, as tf.data stacks lists.

    Args:
        data: an array, or a tuple, list or dict of structures; None in a tuple is left out.
        rows: number of rows; all rows if there are fewer.

    Raises:
        ValueError: if a part is not an array, if there are no rows, or if the arrays have different numbers of rows.

    Example:
        >>> import numpy as np
        >>> from tfdist.verify.data import first_rows
        >>> x, y = first_rows((np.zeros((10, 3)), np.zeros(10)), 4)
        >>> x.shape, y.shape
        ((4, 3), (4,))
    """
    result = _mapped(data, lambda value: _array(value)[:rows])
    found = sorted({len(array) for array in _arrays(_mapped(data, _array))})
    if len(found) != 1 or not found[0]:
        raise ValueError(
            f"expected arrays with the same number of rows, received {' and '.join(map(str, found)) or 'no'} rows."
        )
    return result


def _array(value: Any) -> np.ndarray:
    if not hasattr(value, "__array__") or not np.ndim(value):
        raise ValueError(
            f"expected data of arrays, or a function that returns a tf.data.Dataset, received {type(value).__name__}."
        )
    return np.asarray(value)


def _mapped(data: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(data, dict):
        return {name: _mapped(value, change) for name, value in data.items()}
    if isinstance(data, (tuple, list)):
        return tuple(_mapped(value, change) for value in data if value is not None)
    return change(data)


def _arrays(data: Any) -> Iterator[np.ndarray]:
    if isinstance(data, (dict, tuple)):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _arrays(value)
    else:
        yield data
