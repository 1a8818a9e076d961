"""A part: what one worker keeps of one step, as arrays and notes, and its bytes in memory or in a file.

Layout of the bytes, whole numbers little-endian:

    0   8 bytes   "tfdist" and the version of the format
    8   uint64    place of the index
    16  uint64    number of bytes of the index
    24  uint64    number of bytes of the whole part
    32  uint64    number of the part among those of a memory tier, else 0
    64  the arrays, each at a multiple of 64 bytes, in C order
    ... the index: JSON with the step, the name, dtype, shape and place of each array, and the notes

The arrays come first, since their places do not change from step to step. Each array is copied once, straight to its
place in shared memory, which the file formats of libraries do not allow. This file is independent of TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 (adds bfloat16 and the 8-bit floats to the dtypes of numpy)
import numpy as np

_MAGIC = b"tfdist\x00\x01"
_HEAD = struct.Struct("<8sQQQQ")
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker keeps of one step.

    Attributes:
        step: number of steps since the beginning of the run.
        values: arrays by name, of any numeric or boolean dtype.
        notes: plain values that JSON can hold.
    """

    step: int
    values: Mapping[str, np.ndarray]
    notes: Mapping[str, Any]


class BrokenPartError(ValueError):
    """Bytes that are not a complete part."""


def size_of_values(values: Mapping[str, np.ndarray]) -> int:
    """Returns the number of bytes from the beginning of a part to the end of its arrays.

    Args:
        values: arrays by name.

    Example:
        >>> import numpy as np
        >>> from tfdist.checkpoint.part import size_of_values
        >>> size_of_values({"weights": np.zeros([100], "float32"), "step": np.zeros([], "int64")})
        576
    """
    return _places([array.nbytes for array in values.values()])[-1]


def index_of(part: Part) -> bytes:
    """Returns the index of a part, which comes after its arrays.

    Args:
        part: the part.

    Raises:
        ValueError: if an array has a dtype without a fixed size, or if JSON cannot hold the notes.
    """
    places = _places([array.nbytes for array in part.values.values()])
    listed = []
    for (name, array), place in zip(part.values.items(), places, strict=False):
        if array.dtype.hasobject:
            raise ValueError(f"expected an array of numbers for {name!r}, received one of {array.dtype} objects.")
        listed.append([name, _name_of(array.dtype), list(array.shape), place])
    return json.dumps({"step": part.step, "values": listed, "notes": part.notes}).encode()


def write_part(part: Part, buffer: memoryview, index: bytes | None = None, *, number: int = 0) -> int:
    """Writes a part to a buffer and returns the number of its bytes. Each array is copied once.

    Args:
        part: the part.
        buffer: writable bytes, at least `size_of_values` and the index.
        index: `index_of(part)`, if it is known already.
        number: number of the part in the order of writing, which `number_of` returns.

    Raises:
        ValueError: if the buffer is too small.

    Example:
        >>> import numpy as np
        >>> from tfdist.checkpoint.part import Part, read_part, write_part
        >>> part = Part(step=7, values={"weights": np.arange(3.0)}, notes={"epoch": 1})
        >>> buffer = bytearray(1000)
        >>> size = write_part(part, memoryview(buffer))
        >>> read = read_part(memoryview(buffer)[:size])
        >>> read.step, read.values["weights"].tolist(), read.notes
        (7, [0.0, 1.0, 2.0], {'epoch': 1})
    """
    index = index_of(part) if index is None else index
    arrays = list(part.values.values())
    places = _places([array.nbytes for array in arrays])
    size = places[-1] + len(index)
    if size > len(buffer):
        raise ValueError(f"expected a buffer of at least {size:,} bytes, received {len(buffer):,}.")
    # The buffer may contain an older part, whose head must not stand before these arrays.
    buffer[: _HEAD.size] = bytes(_HEAD.size)
    for array, place in zip(arrays, places, strict=False):
        if array.nbytes:
            target = np.frombuffer(buffer, np.uint8, array.nbytes, place)
            np.copyto(target, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    buffer[places[-1] : size] = index
    # Written last: a part whose writer was killed has no head.
    _HEAD.pack_into(buffer, 0, _MAGIC, places[-1], len(index), size, number)
    return size


def read_part(buffer: memoryview) -> Part:
    """Returns the part that a buffer contains. Its arrays share the memory of the buffer.

    Args:
        buffer: the bytes of the part, and perhaps more bytes after them.

    Raises:
        BrokenPartError: if the bytes are not those of a complete part.
    """
    place, size, _ = _head(buffer)
    try:
        index = json.loads(bytes(buffer[place:size]))
        values = {name: _array(buffer[:place], *rest) for name, *rest in index["values"]}
        return Part(step=int(index["step"]), values=values, notes=index["notes"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenPartError(f"expected the index of a part, received {error}.") from error


def whole_part(buffer: memoryview) -> memoryview:
    """Returns the bytes of the part that a buffer begins with.

    Args:
        buffer: the bytes of the part, and perhaps more bytes after them.

    Raises:
        BrokenPartError: if the bytes are not those of a complete part.
    """
    return buffer[: _head(buffer)[1]]


def number_of(buffer: memoryview) -> int:
    """Returns the number that `write_part` was called with.

    Args:
        buffer: the bytes of the part, and perhaps more bytes after them.

    Raises:
        BrokenPartError: if the bytes are not those of a complete part.
    """
    return _head(buffer)[2]


def _head(buffer: memoryview) -> tuple[int, int, int]:
    """Returns the place of the index, the number of bytes of a part, and its number in the order of writing."""
    if len(buffer) < _HEAD.size:
        raise BrokenPartError(f"expected a part of at least {_HEAD.size} bytes, received {len(buffer)}.")
    magic, place, length, size, number = _HEAD.unpack_from(buffer, 0)
    if magic != _MAGIC:
        raise BrokenPartError("expected a part of tfdist, received other bytes.")
    if size > len(buffer) or place + length != size:
        raise BrokenPartError(f"expected a part of {size:,} bytes, received {len(buffer):,}.")
    return place, size, number


def _name_of(dtype: np.dtype) -> Any:
    """Returns what `_dtype_of` makes the dtype of again."""
    # Only the name tells bfloat16 from two bytes, and only the other texts tell how long a text is.
    with contextlib.suppress(TypeError):
        if np.dtype(dtype.name) == dtype:
            return dtype.name
    return dtype.str if dtype.names is None else dtype.descr


def _dtype_of(name: Any) -> np.dtype:
    if isinstance(name, list):
        return np.dtype([(field, _dtype_of(kind).str, *map(tuple, shape)) for field, kind, *shape in name])
    # Earlier snapshots have the number of bits of a text.
    for begin, kind, bits in (("str", "U", 32), ("bytes", "S", 8)):
        if name.startswith(begin) and name[len(begin) :].isdigit():
            return np.dtype(f"{kind}{int(name[len(begin) :]) // bits}")
    return np.dtype(name)


def _array(buffer: memoryview, dtype: str, shape: Sequence[int], place: int) -> np.ndarray:
    kind = _dtype_of(dtype)
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, kind)
    return np.frombuffer(buffer, np.uint8, count * kind.itemsize, place).view(kind).reshape(shape)


def _places(sizes: Sequence[int]) -> list[int]:
    """Returns the place of each array, and the place after the last one."""
    places = [_ALIGNMENT]
    for size in sizes:
        places.append(-(-(places[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
    return places


def bytes_of(part: Part) -> memoryview:
    """Returns the bytes of a part in new memory, as write_part makes them.

    Args:
        part: the part.
    """
    index = index_of(part)
    buffer = memoryview(bytearray(size_of_values(part.values) + len(index)))
    write_part(part, buffer, index)
    return buffer
