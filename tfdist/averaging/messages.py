"""Messages: what a replica sends to its peers, made and read with the code that packs and compresses gradients.

That code sends with Streams. Here an object without a link takes the place of Streams: `Messages` keeps what would be
sent, and `Replayed` returns what a peer has kept, so that the same code makes the peer's values of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.allreduce.packs import DEFAULT_BYTES_PER_PACK


class Messages:
    """Takes the place of Streams for a replica that is alone: keeps each message, and returns it as the sum of all.

    Args:
        bytes_per_pack: size in bytes of the packs; None for the default.

    Attributes:
        sent: the messages in their order.
        splits: as in Streams.
    """

    splits = False

    def __init__(self, *, bytes_per_pack: int | None = None) -> None:
        self.bytes_per_pack = bytes_per_pack or DEFAULT_BYTES_PER_PACK
        self.sent: list[tf.Tensor] = []

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Keeps tensors, and returns them."""
        return [self.all_gather(tensor) for tensor in tensors]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Keeps a tensor, and returns it."""
        self.sent.append(tensor)
        return tensor


class Replayed(Messages):
    """Takes the place of Streams to read messages: returns them in the order in which they were kept.

    Args:
        messages: those of a peer.
        bytes_per_pack: as for the messages.
    """

    def __init__(self, messages: Sequence[tf.Tensor], *, bytes_per_pack: int | None = None) -> None:
        super().__init__(bytes_per_pack=bytes_per_pack)
        self._messages = iter(messages)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the next message in place of a tensor."""
        return next(self._messages)
