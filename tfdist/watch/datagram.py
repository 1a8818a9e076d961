"""The bytes in which a worker sends its record: a header of fixed size, then the fields as JSON."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping

Value = int | float | str | bool | None

# Small enough for one packet in every network.
MAX_BYTES = 1000
_MAGIC = b"tfd1"
# Magic bytes, token, worker, number of the datagram.
_HEADER = struct.Struct("!4sQIQ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Datagram:
    """A record of a worker on its way.

    Attributes:
        token: the number that the workers of one start of the program share.
        worker: number of the worker that sends.
        number: grows with each datagram of the worker.
        fields: the record.

    Example:
        >>> sent = Datagram(token=7, worker=1, number=3, fields={"step": 8})
        >>> Datagram.from_bytes(sent.to_bytes()) == sent
        True
        >>> Datagram.from_bytes(b"noise") is None
        True
    """

    token: int
    worker: int
    number: int
    fields: Mapping[str, Value]

    def to_bytes(self) -> bytes:
        """Returns the bytes to send."""
        text = json.dumps(dict(self.fields), separators=(",", ":")).encode()
        return _HEADER.pack(_MAGIC, self.token, self.worker, self.number) + text

    @classmethod
    def from_bytes(cls, data: bytes) -> Datagram | None:
        """Returns the datagram, or None for bytes that no worker has sent."""
        if len(data) < _HEADER.size or not data.startswith(_MAGIC):
            return None
        _, token, worker, number = _HEADER.unpack_from(data)
        try:
            fields = json.loads(data[_HEADER.size :])
        except (ValueError, RecursionError):
            # RecursionError: brackets within brackets. Anyone who reaches the port can send them.
            return None
        if not isinstance(fields, dict):
            return None
        return cls(token=token, worker=worker, number=number, fields=fields)
