from __future__ import annotations

import numpy as np
import pytest

from tfdist.train.summary import Summary, weights_checksum


class Model:
    def __init__(self, *weights):
        self._weights = weights

    def get_weights(self):
        return list(self._weights)


ONES = np.ones((2, 3), np.float32)


def summary(**changes):
    fields = {
        "strategy": "MirroredStrategy",
        "num_workers": 1,
        "num_replicas": 2,
        "steps": 440,
        "samples_per_second": 12345.6,
        "accuracy": 0.98765,
        "loss": 0.0123456789,
        "weights": "0123456789abcdef",
        "files": {"model": "out/model.keras", "logs": "out/logs"},
    }
    return Summary(**{**fields, **changes})


def test_equal_weights_share_a_checksum():
    checksum = weights_checksum(Model(ONES, np.zeros(3)))
    assert checksum == weights_checksum(Model(np.asfortranarray(ONES), np.zeros(3)))
    assert len(checksum) == 16
    assert set(checksum) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "other",
    [
        Model(np.nextafter(ONES, 2), np.zeros(3)),
        Model(ONES, np.array([0.0, 0.0, -0.0])),
        Model(np.zeros(3), ONES),
        Model(ONES),
        Model(ONES.astype(np.float64), np.zeros(3)),
    ],
)
def test_any_difference_of_weights_changes_the_checksum(other):
    assert weights_checksum(other) != weights_checksum(Model(ONES, np.zeros(3)))


def test_the_line_holds_the_results_that_are_equal_on_every_worker():
    assert summary().line() == "accuracy 0.9877, loss 0.01234568, steps 440, weights 0123456789abcdef"


@pytest.mark.parametrize(
    ("workers", "replicas", "said"),
    [(1, 1, "1 worker, 1 replica in sync"), (1, 2, "1 worker, 2 replicas in sync"), (2, 2, "2 workers, 2 replicas in")],
)
def test_the_table_shows_every_result(workers, replicas, said, capsys):
    summary(num_workers=workers, num_replicas=replicas).print()
    printed = capsys.readouterr().out
    for text in (
        f"MirroredStrategy, {said}",
        "0.9877",
        "0.0123",
        "440",
        "12,346",
        "0123456789abcdef",
        "out/model.keras",
    ):
        assert text in printed
    assert "tfdist train" in printed
    assert "gradients" not in printed


def test_the_table_has_the_bytes_of_compressed_gradients(capsys):
    summary(gradients="topk, 1,000 bytes a step and replica, 9.9 times fewer").print()
    assert "topk, 1,000 bytes a step and replica, 9.9 times fewer" in capsys.readouterr().out
