"""Changes the constructors of tf.distribute, so that each of them prepares its strategy.

Only the `__init__` of each class is replaced. The classes stay the same objects, so that subclasses, isinstance and
pickled names go on to work. The first strategy imports the rest of tfdist, and Keras.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from tfdist._log import get_logger
from tfdist.adoption import names
from tfdist.adoption.adopt import options_in_force


def change_constructors() -> None:
    """Replaces the `__init__` of every strategy class; the second call would replace the replacements."""
    for kind, strategy_class in names.adopted_classes():
        _change(strategy_class, functools.partial(_adopting, kind))
    for name, strategy_class in names.refused_classes():
        _change(strategy_class, functools.partial(_refusing, name))
    atexit.register(_say_if_nothing_was_adopted)


def _change(strategy_class: Any, replace: Callable[[Callable], Callable]) -> None:
    strategy_class.__init__ = functools.wraps(strategy_class.__init__)(replace(strategy_class.__init__))


def _adopting(kind: str, stock: Callable) -> Callable:
    signature = inspect.signature(stock)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        own = importlib.import_module("tfdist.strategies.own")
        if own.is_making_strategy():
            stock(self, *args, **kwargs)
            return
        try:
            arguments = signature.bind(self, *args, **kwargs)
        except TypeError:
            # TensorFlow raises its own error, which names the constructor.
            stock(self, *args, **kwargs)
            raise
        arguments.apply_defaults()
        given = dict(list(arguments.arguments.items())[1:])
        prepare = importlib.import_module("tfdist.adoption.prepare")
        with own.making_strategy():
            prepare.prepare(kind, self, stock, given, options_in_force())

    return __init__


def _refusing(name: str, stock: Callable) -> Callable:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"expected a strategy of TensorFlow 2 with tfdist.adopt(), received {name}; "
            f"make {name.replace('compat.v1.', '')}, or leave adoption out."
        )

    return __init__


def _say_if_nothing_was_adopted() -> None:
    own = sys.modules.get("tfdist.strategies.own")
    has_failed = hasattr(sys, "last_value")
    if not has_failed and (own is None or not own.has_made_strategies()):
        get_logger().warning("adopted nothing: the program has made no strategy with a constructor of tf.distribute")
