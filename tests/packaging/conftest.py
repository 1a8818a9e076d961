"""The wheel and the sdist, which are built once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.built import built, remove


@pytest.fixture(scope="session")
def packages() -> Iterator[dict[str, Path]]:
    yield built()
    remove()
