"""The relative error between two results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Differs(Exception):
    """Raised if two results differ in more than the values of floats."""


def error_of(own: Any, expected: Any, where: str = "result") -> tuple[float, str]:
    """Returns the largest relative error between two results, and the name of the value that has it.

    The error of a number is relative to the expected number. The error of an array, such as a weight or a prediction,
    is its largest difference relative to its largest expected value, so that a weight near 0 beside weights near 1 may
    have the same absolute error as those. The divisor is at least 1e-3, because float32 rounding dominates below.

    Raises:
        Differs: if the structures, texts, integers or shapes differ, or if an expected number is not finite.
    """
    if isinstance(expected, dict):
        if not isinstance(own, dict) or sorted(own) != sorted(expected):
            raise Differs(f"{where}: {_short(own)}, expected {_short(sorted(expected))}")
        return _largest([error_of(own[key], expected[key], f"{where}, {key}") for key in expected])
    if isinstance(expected, list) and not _is_array(expected):
        if not isinstance(own, list) or len(own) != len(expected):
            raise Differs(f"{where}: {_short(own)}, expected {_short(expected)}")
        return _largest([error_of(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(own, expected, strict=True))])
    if isinstance(expected, (float, list)):
        try:
            one, other = np.asarray(own, dtype=float), np.asarray(expected, dtype=float)
        except (TypeError, ValueError):
            raise Differs(f"{where}: {_short(own)}, expected {_short(expected)}") from None
        if one.shape != other.shape:
            raise Differs(f"{where}: shape {one.shape}, expected {other.shape}")
        if not one.size:
            return 0.0, where
        if not np.isfinite(other).all():
            raise Differs(f"{where}: the expected value is not finite, so that nothing can be compared with it")
        if not np.isfinite(one).all():
            return math.inf, where
        return float(np.abs(one - other).max()) / max(1e-3, float(np.abs(other).max())), where
    if own != expected:
        raise Differs(f"{where}: {_short(own)}, expected {_short(expected)}")
    return 0.0, where


def _largest(errors: list[tuple[float, str]]) -> tuple[float, str]:
    return max(errors, default=(0.0, ""))


def _is_array(value: Any) -> bool:
    try:
        return bool(value) and np.asarray(value).dtype.kind == "f"
    except ValueError:
        # The inner lists have different lengths, so the value is several arrays.
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."
