"""Finds strategies that a program has made before it calls `adopt`."""

from __future__ import annotations

import gc

import tensorflow as tf

from tfdist.adoption.names import public_name


def refuse_earlier_strategies() -> None:
    """Raises RuntimeError if the program has made a strategy that tfdist has not prepared."""
    earlier = earlier_strategies()
    if earlier:
        raise RuntimeError(
            f"expected tfdist.adopt() before the program makes a strategy, received it after {', '.join(earlier)}; "
            "call it at the top of the program."
        )


def earlier_strategies() -> list[str]:
    """Returns the names of the living strategies that neither create_strategy nor adoption has prepared."""
    found = []
    for candidate in gc.get_objects():
        # Not isinstance: some proxies import a module, or raise, when their class is asked for.
        kind = type(candidate)
        of_program = issubclass(kind, tf.distribute.Strategy) and not kind.__name__.startswith("_Default")
        if of_program and not hasattr(candidate, "_tfdist_kind"):
            found.append(public_name(kind))
    return sorted(found)
