"""The fixture `strategy`: two replicas in one process."""

from __future__ import annotations

from typing import Any

import pytest

import tfdist


@pytest.fixture
def strategy(four_cpus: None, no_surroundings: None) -> Any:
    return tfdist.create_strategy("mirrored", devices=2)
