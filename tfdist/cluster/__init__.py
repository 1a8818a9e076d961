"""The processes that train together: ClusterConfig describes them, and the errors name those that cannot be reached.

This package imports no TensorFlow, so that a launcher or a health check that uses it starts quickly. It is the only
package of tfdist that reads the environment.
"""

from __future__ import annotations

from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.errors import PeerTimeoutError, PortInUseError
from tfdist.cluster.tasks import Task

__all__ = ["ClusterConfig", "PeerTimeoutError", "PortInUseError", "Task"]
