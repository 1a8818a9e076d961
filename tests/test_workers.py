"""One process as the only worker, and the log message of a long wait. Other tests run two workers."""

from __future__ import annotations

import logging
import time
import types

import numpy as np
import pytest

from tfdist import create_strategy, workers
from tfdist.workers import count_workers, exchange, is_chief, sum_over_workers, worker_index

pytestmark = pytest.mark.usefixtures("four_cpus", "no_surroundings")


def test_the_only_process_is_the_chief():
    for name in ("one_device", "mirrored", "central_storage", "multi_worker_mirrored"):
        assert is_chief(create_strategy(name))
    assert is_chief(types.SimpleNamespace(extended=object()))
    assert not is_chief(types.SimpleNamespace(extended=types.SimpleNamespace(should_checkpoint=False)))


def test_one_process_is_the_only_worker_and_its_sum_is_its_own_array():
    strategy = create_strategy("mirrored", devices=2)
    assert (count_workers(strategy), worker_index(strategy), count_workers(None)) == (1, 0, 1)
    values = np.array([1, 2])
    assert sum_over_workers(strategy, values) is values
    assert exchange(strategy, [0.5], dtype="float64", to="add") == [(0.5,)]


def test_a_long_wait_logs_the_reason(monkeypatch, caplog):
    logger = logging.getLogger("tests.waiting")
    monkeypatch.setattr(workers, "get_logger", lambda: logger)
    monkeypatch.setattr(workers, "_PATIENCE_SECONDS", 0.05)
    with caplog.at_level(logging.WARNING), workers.saying_what_it_waits_for("save 'model.keras'"):
        deadline = time.monotonic() + 5
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "for every worker to save 'model.keras': all workers have to make this call" in caplog.messages[0]
