"""Who takes part in a training: the value that says so, its TF_CONFIG dialects, and waiting for the others.

Nothing in here imports TensorFlow, so that a launcher, a watchdog or a health check stays light; and no other room of
tfdist reads the environment.
"""

from __future__ import annotations

from tfdist.cluster.address import split_address
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.departure import wait_until_gone
from tfdist.cluster.errors import PeerTimeoutError, PortInUseError
from tfdist.cluster.rendezvous import probe_peers, wait_for_peers
from tfdist.cluster.tasks import Task

__all__ = [
    "ClusterConfig",
    "PeerTimeoutError",
    "PortInUseError",
    "Task",
    "probe_peers",
    "split_address",
    "wait_for_peers",
    "wait_until_gone",
]
