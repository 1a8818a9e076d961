"""Parses and formats the addresses in TF_CONFIG: `host:port`, with an IPv6 host in brackets."""

from __future__ import annotations


def split_address(address: str, *, field: str = "address") -> tuple[str, int]:
    """Returns the host (without brackets) and the port of `host:port`.

    Args:
        address: the address of one task.
        field: how the error message names the address.

    Raises:
        ValueError: if the text does not have this form; the message names the field, the text and the correction.

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
        raise _refusal(field, address, "write only the host and the port")
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        raise _refusal(field, address, "add the port")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise _refusal(field, address, "write an IPv6 host in brackets, as in [::1]:2222")
    name = host[1:-1] if bracketed else host
    if not name or "[" in name or "]" in name:
        raise _refusal(field, address, "write the host before the colon")
    # isdigit() alone accepts digits of other scripts, which no resolver understands.
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise _refusal(field, address, "write a port from 1 to 65535")
    return name, int(port)


def join_address(host: str, port: int) -> str:
    """Returns `host:port`, the inverse of split_address.

    Args:
        host: a name or an IP address without brackets.
        port: a port from 1 to 65535.

    Example:
        >>> join_address("localhost", 2222), join_address("::1", 2222)
        ('localhost:2222', '[::1]:2222')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refusal(field: str, received: object, advice: str) -> ValueError:
    return ValueError(f"expected {field} to be an address host:port, received {received!r}; {advice}.")
