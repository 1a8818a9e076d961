from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _tensorflow(four_cpus, no_surroundings):
    """Runs every test with four logical CPUs and without the environment variables of a cluster."""
