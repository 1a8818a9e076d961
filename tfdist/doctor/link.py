"""Link: what one task found when it connected to another one."""

from __future__ import annotations

import dataclasses
import ipaddress

from tfdist.cluster.address import split_address
from tfdist.doctor.checks.clock import Offset

NO_LOOK_UP = "the look-up of its name has not returned"
NOT_DOCTOR = "another program than tfdist doctor answers there"
TRAINING = "a training that waits for its other tasks answers there"
TENSORFLOW = "a TensorFlow server answers there"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """The last attempt of a task to talk to another one, or to itself.

    Args:
        target: name of the other task.
        address: its `host:port`.
        reason: why it did not answer, in a few words; "" if it did.
        resolved: the IP addresses of its host name.
        name_seconds: how long the look-up of its name took; None if it has not returned.
        clock: how far its clock is ahead; None if it did not answer.

    Raises:
        ValueError: if an address is not valid.
    """

    target: str
    address: str
    reason: str = ""
    resolved: tuple[str, ...] = ()
    name_seconds: float | None = None
    clock: Offset | None = None

    def __post_init__(self) -> None:
        # Links come from the network, too. A broken one raises ValueError here, and not where it is used.
        split_address(self.address)
        for text in self.resolved:
            ipaddress.ip_address(text.partition("%")[0])

    @property
    def is_loopback(self) -> bool:
        """Whether the name resolves to addresses that always mean the machine itself.

        Example:
            >>> Link(target="worker 0", address="a:1", resolved=("127.0.1.1",)).is_loopback
            True
        """
        return bool(self.resolved) and all(
            ipaddress.ip_address(text.partition("%")[0]).is_loopback for text in self.resolved
        )
