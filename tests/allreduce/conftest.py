from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _tensorflow(four_cpus, no_surroundings):
    """Every test here runs in a process whose TensorFlow has four logical CPUs, and that knows of no cluster."""
