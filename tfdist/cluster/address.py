"""Addresses as TF_CONFIG writes them: `host:port`, with an IPv6 host in brackets."""

from __future__ import annotations


def split_address(address: str, *, field: str = "address") -> tuple[str, int]:
    """Returns the host (without brackets) and the port of `host:port`.

    Args:
        address: what a cluster lists for one task.
        field: what the message calls it.

    Raises:
        ValueError: if it is no such address; the message names the field, what was received and what to change.

    Example:
        >>> split_address("worker-1.train.svc:2222")
        ('worker-1.train.svc', 2222)
        >>> split_address("[::1]:2222")
        ('::1', 2222)
        >>> split_address("localhost", field="cluster.worker[0]")
        Traceback (most recent call last):
        ...
        ValueError: expected cluster.worker[0] to be an address host:port, received 'localhost'; add the port.
    """
    if not isinstance(address, str):
        raise _refusal(field, address, "write it as a string")
    if "://" in address:
        raise _refusal(field, address, f"drop the scheme {address.partition('://')[0] + '://'!r}")
    if any(character.isspace() or character in "/,@" for character in address):
        raise _refusal(field, address, "write the host and the port only, with nothing around them")
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        raise _refusal(field, address, "add the port")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise _refusal(field, address, "write an IPv6 host in brackets, as in [::1]:2222")
    name = host[1:-1] if bracketed else host
    if not name or "[" in name or "]" in name:
        raise _refusal(field, address, "write the host before the colon")
    # isdigit() alone takes digits of other scripts, which no resolver understands.
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise _refusal(field, address, "choose a port from 1 to 65535")
    return name, int(port)


def _refusal(field: str, received: object, advice: str) -> ValueError:
    return ValueError(f"expected {field} to be an address host:port, received {received!r}; {advice}.")
