from __future__ import annotations

import argparse

import pytest

from tfdist.bench.sizes import size_as_text, size_from_text


@pytest.mark.parametrize(("text", "size"), [("1K", 1024), ("256M", 1 << 28), ("2G", 2 << 30), ("12", 12)])
def test_sizes_are_written_with_a_unit(text, size):
    assert size_from_text(text) == size
    assert size_as_text(size) == text


@pytest.mark.parametrize("text", ["", "M", "1.5M", "-1K", "3", "1T"])
def test_other_sizes_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        size_from_text(text)
    assert str(refused.value) == (f"expected a number of bytes, at least 4, such as 4096 or 32M, received {text!r}.")
