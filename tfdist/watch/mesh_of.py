"""The mesh of a strategy's workers, opened at its first use."""

from __future__ import annotations

import secrets

import tensorflow as tf

from tfdist.cluster.address import split_address
from tfdist.watch.mesh import Mesh
from tfdist.watch.udp import open_socket
from tfdist.workers import count_workers, exchange, worker_index

_ATTRIBUTE = "_tfdist_mesh"
# The native transport and TensorFlow say so if the workers do not ask for the same sum.
_OTHERS_DIFFER = ("expected all ranks to ask for the same operation", "Collective instance", "Shape mismatch")


def mesh_of(strategy: tf.distribute.Strategy) -> Mesh:
    """Returns the mesh of the workers of a strategy. The first call is collective: all workers make it.

    Args:
        strategy: any strategy. The mesh of strategies that run in one process has one worker.

    Raises:
        OSError: if the host name of a worker does not resolve.
        RuntimeError: if other workers do something else.
        ValueError: if it is no strategy.

    Example:
        >>> import tfdist
        >>> from tfdist.watch.mesh_of import mesh_of
        >>> mesh_of(tfdist.create_strategy("one_device")).size
        1
    """
    if not isinstance(strategy, tf.distribute.Strategy):
        raise ValueError(f"expected a strategy of TensorFlow, received {strategy!r}; use tfdist.create_strategy().")
    mesh: Mesh | None = getattr(strategy, _ATTRIBUTE, None)
    if mesh is None:
        mesh = _open(strategy)
        setattr(strategy, _ATTRIBUTE, mesh)
    return mesh


def worker_addresses(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the addresses `host:port` of TensorFlow's servers, ordered by worker; one empty text if there is none.

    Args:
        strategy: any strategy.

    Example:
        >>> import tfdist
        >>> from tfdist.watch.mesh_of import worker_addresses
        >>> worker_addresses(tfdist.create_strategy("one_device"))
        ['']
    """
    if count_workers(strategy) == 1:
        return [""]
    spec = strategy.cluster_resolver.cluster_spec()
    return [
        spec.task_address(job, index)
        for job in ("chief", "worker")
        if job in spec.jobs
        for index in spec.task_indices(job)
    ]


def _open(strategy: tf.distribute.Strategy) -> Mesh:
    if count_workers(strategy) == 1:
        return Mesh(0, [("localhost", 0)], token=0)
    udp = open_socket()
    own = [udp.getsockname()[1], secrets.randbits(62)]
    try:
        rows = exchange(strategy, own, dtype="int64", to="open the mesh of the workers")
    except (tf.errors.InvalidArgumentError, tf.errors.InternalError) as error:
        udp.close()
        if not any(text in str(error) for text in _OTHERS_DIFFER):
            raise
        raise RuntimeError(
            "expected all workers to begin the watch or the preemption handling of this callback together, received "
            "another operation from another worker; give all workers the same callbacks, such as StallWatch and "
            "AutoResume."
        ) from error
    hosts = [split_address(address)[0] for address in worker_addresses(strategy)]
    ports = [int(row[0]) for row in rows]
    return Mesh(worker_index(strategy), list(zip(hosts, ports, strict=True)), token=int(rows[0][1]), udp=udp)
