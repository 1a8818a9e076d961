"""Packs hold every element of every gradient once, in the order of backprop, and none is too large."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.allreduce.packs import plan_packs

ITEMSIZE = {"float16": 2, "float32": 4, "float64": 8}
GRADIENTS = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(sorted(ITEMSIZE))), max_size=20)


def plan(gradients, bytes_per_pack, *, splits=True):
    return plan_packs(
        [size for size, _ in gradients],
        [dtype for _, dtype in gradients],
        bytes_per_pack=bytes_per_pack,
        itemsizes=[ITEMSIZE[dtype] for _, dtype in gradients],
        splits=splits,
    )


@given(GRADIENTS, st.integers(8, 200), st.booleans())
def test_every_element_is_in_one_pack(gradients, bytes_per_pack, splits):
    seen = [
        (part.index, element)
        for pack in plan(gradients, bytes_per_pack, splits=splits)
        for part in pack.parts
        for element in range(part.start, part.stop)
    ]
    assert sorted(seen) == [(i, element) for i, (size, _) in enumerate(gradients) for element in range(size)]


@given(GRADIENTS, st.integers(8, 200))
def test_a_pack_has_one_dtype_and_is_not_too_large(gradients, bytes_per_pack):
    for pack in plan(gradients, bytes_per_pack):
        assert {gradients[part.index][1] for part in pack.parts} == {pack.dtype}
        assert 0 < pack.elements * ITEMSIZE[pack.dtype] <= bytes_per_pack


@given(GRADIENTS, st.integers(8, 200))
def test_the_last_gradients_of_a_dtype_come_first(gradients, bytes_per_pack):
    packs = plan(gradients, bytes_per_pack)
    for dtype in ITEMSIZE:
        order = [(part.index, part.stop) for pack in packs if pack.dtype == dtype for part in pack.parts]
        assert order == sorted(order, reverse=True)


@given(GRADIENTS, st.integers(8, 200))
def test_packs_of_a_dtype_are_full_but_for_the_last(gradients, bytes_per_pack):
    packs = plan(gradients, bytes_per_pack)
    for dtype, size in ITEMSIZE.items():
        sizes = [pack.elements for pack in packs if pack.dtype == dtype]
        assert all(elements == bytes_per_pack // size for elements in sizes[:-1])


@given(GRADIENTS, st.integers(8, 200))
def test_without_splitting_a_pack_has_whole_gradients_and_long_ones_alone(gradients, bytes_per_pack):
    for pack in plan(gradients, bytes_per_pack, splits=False):
        assert {gradients[part.index][1] for part in pack.parts} == {pack.dtype}
        assert all((part.start, part.stop) == (0, gradients[part.index][0]) for part in pack.parts)
        room = bytes_per_pack // ITEMSIZE[pack.dtype]
        longest = max(part.stop for part in pack.parts)
        assert len(pack.parts) == 1 if longest >= room / 8 else 0 < pack.elements <= room


def test_without_splitting_gradients_are_sent_in_the_order_of_backpropagation_and_short_ones_together():
    sizes = [(100, "float32"), (2, "float32"), (100, "float32"), (2, "float32"), (90, "float32")]
    packs = plan(sizes, 160, splits=False)
    assert [[part.index for part in pack.parts] for pack in packs] == [[4], [2], [0], [3, 1]]


def test_a_pack_smaller_than_an_element_is_refused():
    with pytest.raises(ValueError, match="bytes_per_pack of at least one element, 4 bytes, received 3"):
        plan([(5, "float32")], 3)
