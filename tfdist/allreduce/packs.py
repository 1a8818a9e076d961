"""plan_packs: which gradients, or parts of them, are sent together, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# Large enough that starting a collective costs little beside sending it, small enough to begin early in backprop.
DEFAULT_BYTES_PER_PACK = 2 << 20


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of elements of one gradient.

    Attributes:
        index: of the gradient.
        start: first element, of the flattened gradient.
        stop: the element after the last one.
    """

    index: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Pack:
    """What one collective sends.

    Attributes:
        dtype: name of the one dtype of its gradients.
        parts: in the order in which they are concatenated.
    """

    dtype: str
    parts: tuple[Part, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return sum(part.stop - part.start for part in self.parts)


def plan_packs(
    sizes: Sequence[int], dtypes: Sequence[str], *, bytes_per_pack: int, itemsizes: Sequence[int]
) -> list[Pack]:
    """Returns packs of at most a size, the last gradients first: those are the first that backprop has ready.

    A gradient larger than a pack is split; the parts of a pack have one dtype.

    Args:
        sizes: elements of each gradient, in the order of the layers.
        dtypes: name of the dtype of each.
        bytes_per_pack: the largest size of a pack, in bytes.
        itemsizes: bytes of an element of each.

    Raises:
        ValueError: for a pack that is smaller than an element.

    Example:
        >>> from tfdist.allreduce.packs import plan_packs
        >>> for pack in plan_packs([10, 2, 3], ["float32"] * 3, bytes_per_pack=24, itemsizes=[4] * 3):
        ...     print([(part.index, part.start, part.stop) for part in pack.parts])
        [(2, 0, 3), (1, 0, 2), (0, 9, 10)]
        [(0, 3, 9)]
        [(0, 0, 3)]
    """
    if bytes_per_pack < max(itemsizes, default=0):
        raise ValueError(
            f"expected bytes_per_pack of at least one element, {max(itemsizes)} bytes, received {bytes_per_pack}; "
            "a few MiB suit most networks."
        )
    packs: list[Pack] = []
    open_packs: dict[str, list[Part]] = {}
    room: dict[str, int] = {}
    for index in reversed(range(len(sizes))):
        dtype, whole = dtypes[index], bytes_per_pack // itemsizes[index]
        left = sizes[index]
        while left:
            parts = open_packs.setdefault(dtype, [])
            taken = min(left, room.setdefault(dtype, whole))
            # From the end, so that what a pack holds is one run of the whole.
            parts.append(Part(index, left - taken, left))
            left -= taken
            room[dtype] -= taken
            if not room[dtype]:
                packs.append(Pack(dtype, tuple(open_packs.pop(dtype))))
                del room[dtype]
    return [*packs, *(Pack(dtype, tuple(parts)) for dtype, parts in open_packs.items())]
