"""Whether TensorFlow is installed. tfdist does not depend on it: of its packages, an extra of tfdist chooses one.

The packages tensorflow, tensorflow-cpu and tensorflow-tpu have the same files, so that a dependency on one of them
would install it over another one.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

MISSING = (
    "expected TensorFlow to be installed, found none; run pip install '.[cpu]' in a checkout of tfdist, or take the "
    "extra gpu, tpu or tensorflow instead of cpu."
)

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
"""The environment variable with which TensorFlow takes tf_keras for its Keras."""


def asks_for_tf_keras(variables: Mapping[str, str]) -> bool:
    """Returns whether environment variables make tf_keras the Keras of TensorFlow, as TensorFlow reads them.

    Args:
        variables: the environment variables.

    Example:
        >>> asks_for_tf_keras({"TF_USE_LEGACY_KERAS": "True"}), asks_for_tf_keras({})
        (True, False)
    """
    return variables.get(LEGACY_KERAS, "").lower() in ("1", "true")


def is_installed() -> bool:
    """Returns whether TensorFlow is installed, without importing it.

    Example:
        >>> is_installed()
        True
    """
    if sys.modules.get("tensorflow") is not None:
        return True
    found = importlib.util.find_spec("tensorflow")
    # A folder without `__init__.py` has no origin. It stays if one of two packages of TensorFlow has been removed.
    return found is not None and found.origin is not None
