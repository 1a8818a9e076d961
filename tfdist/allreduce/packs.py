"""plan_packs: decides which gradients, or parts of gradients, are sent together, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# Large enough that starting a collective takes little time compared with sending it, and small enough that the first
# pack is full early in backpropagation.
DEFAULT_BYTES_PER_PACK = 2 << 20
# Without splitting, a gradient of at least this part of a pack is sent alone.
_SENT_ALONE = 1 / 8


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive elements of one flattened gradient.

    Attributes:
        index: position of the gradient in the list of gradients.
        start: position of the first element.
        stop: position after the last element.
    """

    index: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Pack:
    """The parts of gradients that one collective sends.

    Attributes:
        dtype: name of the dtype of all parts.
        parts: the parts in the order in which they are concatenated.
    """

    dtype: str
    parts: tuple[Part, ...]

    @property
    def elements(self) -> int:
        """The number of elements of all parts."""
        return sum(part.stop - part.start for part in self.parts)


def plan_packs(
    sizes: Sequence[int],
    dtypes: Sequence[str],
    *,
    bytes_per_pack: int,
    itemsizes: Sequence[int],
    splits: bool = True,
) -> list[Pack]:
    """Returns the packs in the order in which they are sent.

    Packs begin with the last gradients, which backpropagation computes first. A gradient that does not fit into a pack
    is split. All parts of a pack have one dtype. Without splitting, a gradient of at least an eighth of a pack is sent
    alone, so that it need not be copied.

    Args:
        sizes: number of elements of each gradient, in the order of the layers.
        dtypes: name of each gradient's dtype.
        bytes_per_pack: the largest size of a pack, in bytes.
        itemsizes: size in bytes of an element of each gradient.
        splits: whether a gradient may be sent in several packs; if not, a pack may be larger than `bytes_per_pack`.

    Raises:
        ValueError: if a pack is smaller than an element.

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
        if left and not splits and left >= _SENT_ALONE * whole:
            packs.append(Pack(dtype, (Part(index, 0, left),)))
            continue
        if not splits and left > room.get(dtype, whole):
            packs.append(Pack(dtype, tuple(open_packs.pop(dtype))))
            del room[dtype]
        while left:
            parts = open_packs.setdefault(dtype, [])
            taken = min(left, room.setdefault(dtype, whole))
            # Taken from the end of the gradient, so that the elements in a pack are consecutive.
            parts.append(Part(index, left - taken, left))
            left -= taken
            room[dtype] -= taken
            if not room[dtype]:
                packs.append(Pack(dtype, tuple(open_packs.pop(dtype))))
                del room[dtype]
    return [*packs, *(Pack(dtype, tuple(parts)) for dtype, parts in open_packs.items())]
