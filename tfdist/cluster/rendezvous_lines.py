"""The lines that ranks exchange at their rendezvous, and the proofs in them."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tfdist.cluster.address import join_address

# Enough for the addresses of 65,536 ranks; a line comes from the network, so its length is not trusted.
MAX_BYTES = 1 << 22
# A report is a short line.
MAX_REPORT_BYTES = 512


class Report(NamedTuple):
    """What a rank tells rank 0.

    Args:
        rank: the rank.
        size: the number of ranks that it knows.
        port: its port.
        nonce: a text with which rank 0 proves that it knows the run id.
        proof: shows that the rank knows the run id.
    """

    rank: int
    size: int
    port: int
    nonce: str
    proof: str

    def to_line(self) -> bytes:
        """Returns the line to send."""
        return line_of(self._asdict())

    @classmethod
    def from_line(cls, line: bytes) -> Report | None:
        """Returns the report in a line, or None if it is something else."""
        values = document_of(line)
        types = {name: str if name in ("nonce", "proof") else int for name in cls._fields}
        if set(values) != set(types) or any(type(values[name]) is not kind for name, kind in types.items()):
            return None
        return cls(**values) if values["rank"] > 0 and 0 < values["port"] < 65536 else None


class Seen(NamedTuple):
    """A connection of a rank, as rank 0 sees it.

    Args:
        peer: the IP address of the rank.
        own: the IP address of rank 0 on the same connection.
        port: the port that the rank has reported.
    """

    peer: str
    own: str
    port: int


def proof_of(run_id: str, *parts: object) -> str:
    """Returns what only a process that knows the run id can compute.

    Example:
        >>> proof_of("4711", "nonce", 1) == proof_of("4711", "nonce", 1), proof_of("4711", "nonce", 2)[:4]
        (True, ...)
    """
    return hmac.new(run_id.encode(), json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def line_of(document: dict[str, Any]) -> bytes:
    r"""Returns a JSON document as one line.

    Example:
        >>> line_of({"rank": 1})
        b'{"rank": 1}\n'
    """
    return json.dumps(document).encode() + b"\n"


def document_of(line: bytes) -> dict[str, Any]:
    r"""Returns the JSON document in a line; {} if the line has none.

    Example:
        >>> document_of(b'{"rank": 1}\n'), document_of(b"SSH-2.0"), document_of(b"[1]\n")
        ({'rank': 1}, {}, {})
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def addresses_of(seen: Sequence[Seen], *, port: int) -> tuple[str, ...]:
    """Returns the addresses of all ranks: that of rank 0, then those of the others.

    A rank on the host of rank 0 may have connected through the loopback interface, at which ranks on other hosts do
    not reach it; it has the address of rank 0.

    Args:
        seen: the connections of the ranks from 1.
        port: the port of rank 0.

    Example:
        >>> addresses_of([Seen("127.0.0.1", "127.0.0.1", 5001), Seen("10.0.0.2", "10.0.0.1", 5002)], port=5000)
        ('10.0.0.1:5000', '10.0.0.1:5001', '10.0.0.2:5002')
        >>> addresses_of([Seen("127.0.0.1", "127.0.0.1", 5001)], port=5000)
        ('127.0.0.1:5000', '127.0.0.1:5001')
    """
    remote = [one for one in seen if one.peer != one.own and not ipaddress.ip_address(one.peer).is_loopback]
    host = (remote or list(seen))[0].own
    others = [join_address(one.peer if one in remote else host, one.port) for one in seen]
    return (join_address(host, port), *others)


def plain(address: str) -> str:
    """Returns an IP address without the form in which IPv6 sockets show IPv4 addresses.

    Example:
        >>> plain("::ffff:10.0.0.1"), plain("::1")
        ('10.0.0.1', '::1')
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def names_of(ranks: Sequence[int]) -> str:
    """Returns ranks as words.

    Example:
        >>> names_of([3]), names_of([1, 2, 5])
        ('rank 3', 'ranks 1, 2, 5')
    """
    shown = ", ".join(str(rank) for rank in ranks[:16])
    more = f" and {len(ranks) - 16} more" if len(ranks) > 16 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
