"""Makes distributed datasets of parameter servers keep the dataset or function that they are made from.

`fit` needs this dataset or function, since with this strategy every worker builds its own dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.mend import patch_method

_ATTRIBUTES = {
    "distribute_datasets_from_function": ("dataset_fn", "tfdist_dataset_fn"),
    "experimental_distribute_dataset": ("dataset", "tfdist_dataset"),
}
_patched: list[type] = []


def keep_datasets(strategy_class: type) -> None:
    """Replaces the two methods of a strategy class that make distributed datasets, once.

    Args:
        strategy_class: tf.distribute.ParameterServerStrategy.
    """
    if strategy_class not in _patched:
        _patched.append(strategy_class)
        for method, (argument, attribute) in _ATTRIBUTES.items():
            patch_method(strategy_class, method, _keeping(argument, attribute))


def _keeping(argument: str, attribute: str) -> Callable[[Callable], Callable]:
    def replace(stock: Callable) -> Callable:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            distributed = stock(self, *args, **kwargs)
            setattr(distributed, attribute, args[0] if args else kwargs[argument])
            return distributed

        return method

    return replace
