"""prepare_keras applies the mends of a strategy and returns the strategy."""

from __future__ import annotations

from types import SimpleNamespace

from tfdist.keras_compat import keras_in_use, registry


def test_the_strategy_is_returned_after_its_mends_are_applied(monkeypatch):
    seen = []
    monkeypatch.setattr(registry, "apply_mends", lambda *given: seen.append(given))
    strategy = SimpleNamespace()
    assert registry.prepare_keras(strategy, "mirrored") is strategy
    assert seen == [("mirrored", keras_in_use(), strategy)]
