"""Builds a tf.distribute.Strategy from a ClusterConfig and options.

`STRATEGY_NAMES` has the names that `create_strategy` takes.

Example:
    >>> from tfdist.strategies import STRATEGY_NAMES
    >>> "mirrored" in STRATEGY_NAMES
    True
"""

import tfdist._needs_tensorflow  # noqa: F401
from tfdist._strategy_names import STRATEGY_NAMES
from tfdist.strategies.central_storage import central_storage
from tfdist.strategies.create import create_strategy
from tfdist.strategies.mirrored import mirrored
from tfdist.strategies.multi_worker_mirrored import multi_worker_mirrored
from tfdist.strategies.one_device import one_device
from tfdist.strategies.parameter_server import parameter_server
from tfdist.strategies.tpu import tpu

__all__ = [
    "STRATEGY_NAMES",
    "central_storage",
    "create_strategy",
    "mirrored",
    "multi_worker_mirrored",
    "one_device",
    "parameter_server",
    "tpu",
]
