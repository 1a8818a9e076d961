"""Describes the processes that train together, and raises errors that name the processes that cannot be reached.

This package imports no TensorFlow, so that a launcher or a health check that uses it starts quickly. No other package
of tfdist reads TF_CONFIG.
"""

from __future__ import annotations

from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.errors import PeerTimeoutError, PortInUseError
from tfdist.cluster.progress import ProgressFile
from tfdist.cluster.tasks import Task

__all__ = ["ClusterConfig", "PeerTimeoutError", "PortInUseError", "ProgressFile", "Task"]
