"""A part is read as it was written; bytes that are not a complete part are refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tfdist.checkpoint import part as part_module
from tfdist.checkpoint.part import BrokenPartError, Part, index_of, read_part, size_of_values, whole_part, write_part

DTYPES = st.sampled_from(["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool", "complex64"])
VALUES = st.dictionaries(
    st.text(max_size=8), DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0)))
)


def bytes_of(part: Part, extra: int = 0) -> memoryview:
    buffer = memoryview(bytearray(b"\xff" * (size_of_values(part.values) + len(index_of(part)) + extra)))
    size = write_part(part, buffer)
    assert size == len(buffer) - extra
    return buffer


@given(VALUES, st.integers(0, 2**62), st.integers(0, 200))
def test_what_is_written_is_read(values, step, extra):
    notes = {"epoch": 3, "history": {"loss": [0.5, None]}, "text": "ä"}
    buffer = bytes_of(Part(step=step, values=values, notes=notes), extra)
    found = read_part(buffer)
    assert (found.step, found.notes, list(found.values)) == (step, notes, list(values))
    for name, array in values.items():
        assert found.values[name].dtype == array.dtype
        np.testing.assert_array_equal(found.values[name], array)
    assert len(whole_part(buffer)) == len(buffer) - extra


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_dtypes_of_accelerators_are_kept(dtype):
    array = np.arange(5).astype(getattr(ml_dtypes, dtype))
    found = read_part(bytes_of(Part(step=0, values={"a": array}, notes={}))).values["a"]
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.array(["cat", "horse"]),
        np.array([b"cat", b"horse"]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.arange(3, dtype=">f4"),
        np.array([(1, "a", [0.5, 1.0])], [("step", "i4"), ("name", "U2"), ("pair", "f8", (2,))]),
    ],
    ids=["text", "bytes", "date", "big-endian", "fields"],
)
def test_arrays_of_other_kinds_are_kept(array):
    found = read_part(bytes_of(Part(step=0, values={"a": array}, notes={}))).values["a"]
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


def test_texts_of_earlier_versions_are_read(monkeypatch):
    monkeypatch.setattr(part_module, "_name_of", lambda dtype: dtype.name)
    values = {"texts": np.array(["cat", "horse"]), "bytes": np.array([b"cat", b"horse"])}
    found = read_part(bytes_of(Part(step=0, values=values, notes={}))).values
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in values.items()
    }


def test_an_array_of_any_order_in_memory_is_kept():
    array = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    np.testing.assert_array_equal(read_part(bytes_of(Part(step=0, values={"a": array}, notes={}))).values["a"], array)


@pytest.mark.parametrize("length", [0, 8, 31, 63, 64, 200])
def test_a_truncated_part_is_refused(length):
    buffer = bytes_of(Part(step=1, values={"a": np.ones(50)}, notes={}))
    with pytest.raises(BrokenPartError, match="expected a part of"):
        read_part(buffer[:length])


def test_other_bytes_are_refused():
    with pytest.raises(BrokenPartError, match="expected a part of tfdist"):
        read_part(memoryview(b"x" * 100))


@pytest.mark.parametrize(("old", "new"), [(b'"step"', b'"stop"'), (b"float64", b"float99"), (b"[50]", b"[99]")])
def test_a_changed_index_is_refused(old, new):
    data = bytes(bytes_of(Part(step=1, values={"a": np.ones(50)}, notes={})))
    with pytest.raises(BrokenPartError, match="expected the index of a part"):
        read_part(memoryview(data.replace(old, new)))


def test_a_part_that_replaces_another_one_has_no_head_until_it_is_complete(monkeypatch):
    buffer = bytes_of(Part(step=1, values={"a": np.ones(50)}, notes={}), 1000)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "copyto", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_part(Part(step=2, values={"a": np.zeros(50)}, notes={}), buffer)
    with pytest.raises(BrokenPartError):
        read_part(buffer)


def test_a_small_buffer_and_objects_are_refused():
    part = Part(step=1, values={"a": np.ones(50)}, notes={})
    with pytest.raises(ValueError, match="expected a buffer of at least"):
        write_part(part, memoryview(bytearray(100)))
    with pytest.raises(ValueError, match="expected an array of numbers for 'a'"):
        index_of(Part(step=1, values={"a": np.array(["text"], object)}, notes={}))
