"""A plugin of pytest for Keras's own tests: applies the mends, and enters the scope of a strategy for each test.

The environment variable TFDIST_UPSTREAM contains "mends", "scope", both or neither.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ASKED = os.environ.get("TFDIST_UPSTREAM", "").split()
_outcomes: dict[str, str] = {}


def two_replicas() -> Any:
    """Returns a MirroredStrategy of two logical CPUs; without mends, a bare one of TensorFlow."""
    import tensorflow as tf

    if "mends" in ASKED:
        import tfdist

        return tfdist.create_strategy("mirrored", devices=2)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def pytest_configure(config: pytest.Config) -> None:
    import keras  # noqa: F401

    # Creating a strategy applies the mends. The tests of distribution reset TensorFlow and make strategies themselves.
    strategy = two_replicas() if ASKED else None
    if "scope" in ASKED:
        enter_in_each_test(strategy)
    if importlib.util.find_spec("jax") is None:
        # The tests of the trainer import JAX, and use it with the backend of JAX only.
        sys.modules["jax"] = types.ModuleType("jax")


def enter_in_each_test(strategy: Any) -> None:
    """Makes each test of Keras enter the scope of a strategy after its setUp, which resets the default graph."""
    from keras.src.testing import TestCase

    stock = TestCase.setUp

    def set_up(self: Any) -> None:
        stock(self)
        scope = contextlib.ExitStack()
        scope.enter_context(strategy.scope())
        self.addCleanup(scope.close)

    TestCase.setUp = set_up


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.split("::", 1)[-1]
    if report.when == "call" or report.outcome != "passed":
        lines = str(report.longrepr).strip().splitlines() if report.failed else []
        reason = next((line[1:].strip() for line in lines if line.startswith("E  ")), "")
        _outcomes[name] = f"{report.outcome}: {reason}" if reason else report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    Path(os.environ["TFDIST_UPSTREAM_RESULTS"]).write_text(json.dumps(_outcomes))
