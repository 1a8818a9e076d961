"""Sums many tensors over replicas in packs, several of which are sent at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.allreduce.packs import plan_packs
from tfdist.allreduce.streams import Streams


class Packing:
    """Makes packs of tensors, and tensors of the sums of the packs.

    Args:
        tensors: dense tensors of known shapes, or TensorSpecs of them; gradients in the order of the layers.
        bytes_per_pack: size in bytes of a pack.
        splits: whether several packs may share a tensor.

    Raises:
        ValueError: if the shape of a tensor is unknown, since the shapes decide which tensors share a pack.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.allreduce.packed import Packing
        >>> tensors = [tf.constant([1.0, 2.0]), tf.constant([[3.0]])]
        >>> packing = Packing(tensors, bytes_per_pack=1024)
        >>> [pack.numpy().tolist() for pack in packing.pack(tensors)]
        [[3.0, 1.0, 2.0]]
        >>> [one.numpy().tolist() for one in packing.unpack(packing.pack(tensors))]
        [[1.0, 2.0], [[3.0]]]
    """

    def __init__(
        self, tensors: Sequence[tf.Tensor | tf.TensorSpec], *, bytes_per_pack: int, splits: bool = True
    ) -> None:
        for tensor in tensors:
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"expected tensors of known shapes to be summed over replicas, received the shape {tensor.shape}; "
                    "set it with tf.ensure_shape."
                )
        self._specs = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self._packs = plan_packs(
            [tensor.shape.num_elements() for tensor in tensors],
            [tensor.dtype.name for tensor in tensors],
            bytes_per_pack=bytes_per_pack,
            itemsizes=[tensor.dtype.size for tensor in tensors],
            splits=splits,
        )

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The shape and dtype of each pack."""
        return [
            tf.TensorSpec([sum(one.stop - one.start for one in pack.parts)], self._specs[pack.parts[0].index][1])
            for pack in self._packs
        ]

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the packs; each has one axis, and depends on its own tensors only."""
        flat = [tf.reshape(tensor, [-1]) for tensor in tensors]

        def part(index: int, start: int, stop: int) -> tf.Tensor:
            whole = flat[index]
            return whole if stop - start == whole.shape[0] else whole[start:stop]

        inputs = [[part(one.index, one.start, one.stop) for one in pack.parts] for pack in self._packs]
        return [parts[0] if len(parts) == 1 else tf.concat(parts, 0) for parts in inputs]

    def unpack(self, packs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors whose elements are in the packs."""
        pieces: list[list[tuple[int, tf.Tensor]]] = [[] for _ in self._specs]
        for pack, total in zip(self._packs, packs, strict=True):
            sizes = [one.stop - one.start for one in pack.parts]
            for one, piece in zip(pack.parts, tf.split(total, sizes) if len(sizes) > 1 else [total], strict=True):
                pieces[one.index].append((one.start, piece))
        return [
            _joined([piece for _, piece in sorted(found, key=lambda one: one[0])], shape, dtype)
            for found, (shape, dtype) in zip(pieces, self._specs, strict=True)
        ]


def packed_all_reduce(tensors: Sequence[tf.Tensor], streams: Streams) -> list[tf.Tensor]:
    """Returns each tensor's sum over all replicas.

    Args:
        tensors: dense tensors of known shapes, which are the same on every replica; gradients in the order of the
            layers.
        streams: the streams to send with; their bytes_per_pack is the size of the packs.

    Raises:
        ValueError: if the shape of a tensor is unknown, since the shapes decide which tensors share a pack.

    Example:
        >>> import tensorflow as tf, tfdist
        >>> from tfdist.allreduce import Streams, packed_all_reduce
        >>> strategy = tfdist.create_strategy("mirrored", devices=2)
        >>> total = strategy.run(tf.function(lambda: packed_all_reduce([tf.constant([1.0, 2.0])], Streams())[0]))
        >>> strategy.experimental_local_results(total)[0].numpy().tolist()
        [2.0, 4.0]
    """
    packing = Packing(tensors, bytes_per_pack=streams.bytes_per_pack, splits=streams.splits)
    # A pack depends on its own gradients only: it is sent as soon as backpropagation has computed them.
    return packing.unpack(streams.all_reduce(packing.pack(tensors)))


def _joined(pieces: list[tf.Tensor], shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    if not pieces:
        # A tensor without elements is in no pack.
        return tf.zeros(shape, dtype)
    return tf.reshape(pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0), shape)
