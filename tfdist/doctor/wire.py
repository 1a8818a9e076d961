"""Encodes facts as JSON lines, and decodes and checks what comes from the network."""

from __future__ import annotations

import dataclasses
import json
import socket
import types
from collections.abc import Mapping
from io import BufferedReader
from typing import Any, Union, get_args, get_origin, get_type_hints

# The facts of a task of a cluster of a thousand tasks have some hundred kilobytes.
MOST_BYTES = 8 << 20
_LONGEST_TEXT = 2000


def send(connection: socket.socket, kind: str, **content: Any) -> None:
    """Sends one message.

    Args:
        connection: a connected socket.
        kind: kind of the message.
        content: further fields; dataclasses are sent as objects.
    """
    message = {"kind": kind, **{key: encode(value) for key, value in content.items()}}
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(file: BufferedReader, kind: str | None = None) -> dict[str, Any]:
    """Returns the next message.

    Args:
        file: a file of a connected socket with a timeout.
        kind: the kind that the message must have; None allows every kind.

    Raises:
        EOFError: if the other side has closed the connection.
        ValueError: if something else than a message of this kind came.
        OSError: if the connection fails, or nothing comes in time.
    """
    line = file.readline(MOST_BYTES)
    if not line:
        raise EOFError("the connection was closed")
    return message_in(line, kind)


def message_in(line: bytes, kind: str | None = None) -> dict[str, Any]:
    r"""Returns the message in a line.

    Raises:
        ValueError: if the line is something else.

    Example:
        >>> message_in(b'{"kind": "ping", "sent": 1.5}\n')
        {'kind': 'ping', 'sent': 1.5}
        >>> message_in(b"GET / HTTP/1.1\n")
        Traceback (most recent call last):
        ...
        ValueError: expected a message of tfdist doctor, received b'GET / HTTP/1.1'.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str) or kind not in (None, message["kind"]):
        raise ValueError(f"expected a message of tfdist doctor, received {line[:60].strip()!r}.")
    return message


def encode(value: Any) -> Any:
    """Returns a value that JSON can contain.

    Example:
        >>> encode({"a": (1, 2)})
        {'a': [1, 2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, value: Any) -> Any:
    """Returns the value of a type that `encode` has encoded. Unknown fields of objects are ignored.

    Args:
        kind: str, int, float, bool, a dataclass, or tuple[X, ...], dict[str, X] or X | None of these.
        value: what JSON contained.

    Raises:
        ValueError: if the value does not have this type.

    Example:
        >>> decode(tuple[float, ...], [1, 2.5])
        (1.0, 2.5)
        >>> decode(str | None, 3)
        Traceback (most recent call last):
        ...
        ValueError: expected str | None, received 3.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind) if field.name in value]
        try:
            return kind(**{name: decode(hints[name], value[name]) for name in names})  # type: ignore[operator]
        except TypeError as error:
            raise ValueError(f"expected the fields of {kind}, received {', '.join(names)}: {error}.") from None
    if origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return decode(option, value)
            except ValueError:
                continue
    elif origin is tuple and isinstance(value, list):
        return tuple(decode(arguments[0], item) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {_plain(key): decode(arguments[1], item) for key, item in value.items()}
    elif kind is type(None) and value is None:
        return None
    elif kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif kind is str and isinstance(value, str):
        return _plain(value)
    elif kind in (int, bool) and type(value) is kind:
        return value
    raise ValueError(f"expected {getattr(kind, '__name__', kind) if origin is None else kind}, received {value!r:.60}.")


def _plain(text: str) -> str:
    # The text is shown on a terminal, which would obey its control characters.
    return "".join(character if character.isprintable() else " " for character in text[:_LONGEST_TEXT])
