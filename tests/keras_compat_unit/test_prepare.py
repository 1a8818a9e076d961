from __future__ import annotations

import pytest

from tfdist.keras_compat import check_variable_partitioner, keras_in_use, prepare, prepare_keras


def test_the_strategy_comes_back_after_its_mends(monkeypatch):
    seen = []
    monkeypatch.setattr(prepare, "apply_mends", lambda kind, keras: seen.append((kind, keras)))
    strategy = object()
    assert prepare_keras(strategy, "mirrored") is strategy
    assert seen == [("mirrored", keras_in_use())]


def test_no_partitioner_is_fine():
    check_variable_partitioner(None)


def test_a_partitioner_is_refused_by_keras_3_alone():
    if not keras_in_use().is_keras3:
        check_variable_partitioner(lambda **_: [1])
        return
    with pytest.raises(ValueError, match=r"expected no variable_partitioner with Keras 3, .*received one; leave"):
        check_variable_partitioner(lambda **_: [1])
