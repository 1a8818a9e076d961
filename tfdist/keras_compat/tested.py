"""The releases of Keras and TensorFlow that tfdist was tested with, and what happens with others.

pyproject.toml refuses other releases, but pip does not check a TensorFlow that is already there. With another release,
the log says so once, and the check of each mend decides whether the mend is applied.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.keras_compat.version import KerasInUse

Release = tuple[int, int]

# The bounds of pyproject.toml, by the name of the Keras. tests/matrix has every pair of Keras and TensorFlow.
KERAS: dict[str, tuple[Release, Release]] = {
    "keras3": ((3, 8), (3, 15)),
    "tf_keras": ((2, 18), (2, 21)),
    "keras2": ((2, 15), (2, 15)),
}
TENSORFLOW: tuple[tuple[Release, Release], ...] = (((2, 15), (2, 15)), ((2, 18), (2, 21)))


def nearest_tested(keras: KerasInUse) -> Release:
    """Returns the release of a Keras, or the nearest release that was tested.

    Args:
        keras: the Keras in use.

    Example:
        >>> from tfdist.keras_compat import KerasInUse
        >>> from tfdist.keras_compat.tested import nearest_tested
        >>> [nearest_tested(KerasInUse("keras3", version, "")) for version in ("3.7.0", "3.12.4", "3.16.0")]
        [(3, 8), (3, 12), (3, 15)]
    """
    first, last = KERAS[keras.name]
    return min(max(keras.release, first), last)


def untested(keras: KerasInUse, tensorflow: str) -> list[str]:
    """Returns the releases that were not tested, each with those that were.

    Args:
        keras: the Keras in use.
        tensorflow: the version of TensorFlow.

    Example:
        >>> from tfdist.keras_compat import KerasInUse
        >>> from tfdist.keras_compat.tested import untested
        >>> untested(KerasInUse("keras3", "3.16.0", ""), "2.21.0")
        ['keras 3.16.0 (3.8 to 3.15 were)']
    """
    own = tuple(map(int, tensorflow.split(".")[:2]))
    found = []
    if keras.release != nearest_tested(keras):
        package = "tf_keras" if keras.name == "tf_keras" else "keras"
        found.append(f"{package} {keras.version} ({_span(*KERAS[keras.name])} were)")
    if not any(first <= own <= last for first, last in TENSORFLOW):
        found.append(f"tensorflow {tensorflow} ({', '.join(_span(*one) for one in TENSORFLOW)} were)")
    return found


def _span(first: Release, last: Release) -> str:
    names = [f"{major}.{minor}" for major, minor in (first, last)]
    return " to ".join(dict.fromkeys(names))


@functools.cache
def say_if_untested(keras: KerasInUse) -> None:
    """Writes one line to the log, once, if the installed Keras or TensorFlow was not tested with this tfdist.

    Args:
        keras: the Keras in use.
    """
    found = untested(keras, tf.__version__)
    if found:
        get_logger().warning(
            "this version of tfdist was not tested with %s; the check of each mend decides whether it is applied. "
            "Compare your program with one device by `tfdist verify`, or install a tested version.",
            " and ".join(found),
        )


def defect_present(mend: Any, keras: KerasInUse) -> bool:
    """Returns what the check of a mend finds.

    Args:
        mend: the mend.
        keras: the Keras in use.

    Raises:
        ValueError: if the check fails in a release that was not tested.
    """
    try:
        return bool(mend.defect_present())
    except (AttributeError, ImportError, OSError, TypeError) as error:
        if not untested(keras, tf.__version__):
            raise
        raise ValueError(
            f"expected a tested version of Keras and TensorFlow, received {keras.version} and {tf.__version__}, for "
            f"which the check {mend.name} fails ({type(error).__name__}: {error}); install a tested version, see "
            "docs/versions.md."
        ) from error
