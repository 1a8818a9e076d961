"""Meeting: processes that know their rank and their number, but not each other's addresses."""

from __future__ import annotations

import dataclasses
import hashlib

COORDINATOR = "TFDIST_COORDINATOR"
# How long the ranks wait for each other, as create_strategy does.
TIMEOUT_SECONDS = 300.0
# Below the ports that Linux gives to outgoing connections.
_FIRST_PORT, _PORTS = 12000, 20000
_STRIDE = 2503
_CHOICES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meeting:
    """Says where the ranks of a launcher exchange their addresses: at rank 0, which listens.

    Args:
        rank: the rank of this process.
        size: the number of ranks.
        run_id: a text that the ranks of this run share, and that other runs do not have.
        hosts: where rank 0 may be, in the order in which the other ranks look; empty if `pmi` tells.
        ports: the ports at which rank 0 may listen, the preferred one first.
        named_by: the variable that names the hosts, for messages.
        advice: how the user names the host of rank 0, for messages.
        pmi: the file descriptor of the launcher's key-value store, at which rank 0 says where it listens; None if the
            launcher has none.

    Example:
        >>> Meeting(rank=1, size=2, run_id="4711", hosts=("node1",), ports=(12000,), named_by="X", advice="").name
        'rank 1 of 2'
    """

    rank: int
    size: int
    run_id: str
    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    named_by: str
    advice: str
    pmi: int | None = None

    @property
    def name(self) -> str:
        """The name of this process in messages."""
        return f"rank {self.rank} of {self.size}"


def ports_of(run_id: str) -> tuple[int, ...]:
    """Returns the ports at which rank 0 of a run tries to listen, which all ranks compute.

    Args:
        run_id: a text that the ranks of this run share.

    Example:
        >>> ports_of("4711") == ports_of("4711"), ports_of("4711") == ports_of("4712"), len(set(ports_of("4711")))
        (True, False, 8)
    """
    start = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big")
    return tuple(_FIRST_PORT + (start + choice * _STRIDE) % _PORTS for choice in range(_CHOICES))
