"""A process connects with the other tasks of its cluster once: TensorFlow cannot end its server, nor start another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdist.cluster import ClusterConfig, PortInUseError

# By the address of this task: the strategy whose server has its port.
_made: dict[str | None, str] = {}


def note_strategy(name: str, cluster: ClusterConfig) -> None:
    """Notes that TensorFlow's server of this process has the port of its task from now on.

    Args:
        name: the strategy that was made.
        cluster: the cluster, and the task of this process in it.
    """
    _made[cluster.address] = name


@contextlib.contextmanager
def refusing_second_strategy(name: str, cluster: ClusterConfig) -> Iterator[None]:
    """Says that this process itself has the port of its task, if the body finds the port in use because of that.

    Args:
        name: the strategy that is asked for.
        cluster: the cluster, and the task of this process in it.

    Raises:
        RuntimeError: if this process has made a strategy of the cluster before.
    """
    try:
        yield
    except PortInUseError as error:
        if cluster.address not in _made:
            raise
        raise RuntimeError(
            f"expected one strategy of a cluster in a process, received a call for {name} after "
            f"{_made[cluster.address]} was made; use the strategy that was made first for every model, or start the "
            "program again."
        ) from error
