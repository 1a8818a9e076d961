"""The algorithms whose time `predict` predicts. `Rounds` is one of them, too."""

from __future__ import annotations

from dataclasses import dataclass

from tfdist.averaging.mixing import Mixing
from tfdist.averaging.simulate.asynchronous import Staleness
from tfdist.averaging.simulate.local import Rounds


@dataclass(frozen=True)
class Synchronous:
    """Synchronous SGD with a ring all-reduce of the gradients in each step.

    Example:
        >>> Synchronous()
        Synchronous()
    """


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """D-PSGD with mixing matrices.

    Args:
        mixing: the mixing matrices.

    Example:
        >>> from tfdist.averaging import ring
        >>> Gossip(mixing=ring(4)).mixing.workers
        4
    """

    mixing: Mixing


@dataclass(frozen=True, kw_only=True)
class ParameterServer:
    """Asynchronous SGD with parameter servers that have equal parts of the weights, each with a link as the workers'.

    Args:
        staleness: the rule.
        servers: the number of servers.

    Example:
        >>> ParameterServer(staleness=Staleness(scale="1/tau"), servers=4).servers
        4
    """

    staleness: Staleness
    servers: int = 1

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise ValueError(f"expected at least 1 parameter server, received {self.servers!r}.")


Method = Synchronous | Rounds | Gossip | ParameterServer
