"""Mend: a guarded patch of upstream code. Every mend imports this file, which imports no mend."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.version import KerasInUse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mend:
    """A guarded patch of upstream code.

    Attributes:
        name: a name that says the defect; the file that the mend lives in bears it.
        issue: the upstream issue, such as "keras-team/keras#20585", or "not reported".
        strategies: the names of the strategies that need the mend.
        keras: the Kerases that the mend is for, by KerasInUse.name.
        versions: (first, last) release that the mend was written against, such as ((3, 15), (3, 15)).
        defect_present: returns whether the installed Keras or TensorFlow still has the defect.
        apply: puts the patch in place.
        defect: a sentence for users: what stock Keras or TensorFlow does wrong.
        rows: the rows of docs/conformance.md that show the defect and the mend.
        needed_by: returns whether a strategy of one of these names needs the mend; None if every one does.
    """

    name: str
    issue: str
    strategies: tuple[str, ...]
    keras: tuple[str, ...]
    versions: tuple[tuple[int, int], tuple[int, int]]
    defect_present: Callable[[], bool]
    apply: Callable[[], None]
    defect: str = ""
    rows: tuple[str, ...] = ()
    needed_by: Callable[[Any], bool] | None = None

    def suits(self, kind: str, keras: KerasInUse, strategy: Any) -> bool:
        """Returns whether a strategy needs the mend with this Keras.

        Args:
            kind: the name of the strategy in create_strategy.
            keras: the Keras in use.
            strategy: the strategy itself; None before it is made, when only mends with `needed_by` can be needed.
        """
        first, last = self.versions
        return (
            kind in self.strategies
            and keras.name in self.keras
            and first <= keras.release <= last
            and (strategy is not None if self.needed_by is None else self.needed_by(strategy))
        )


def patch_method(model_class: Any, name: str, replace: Callable[[Callable], Callable]) -> None:
    """Replaces a method by what `replace` makes of it, keeping its name, documentation and signature."""
    stock = getattr(model_class, name)
    method = replace(stock)
    method.__name__, method.__doc__ = name, stock.__doc__
    method.__signature__ = inspect.signature(stock)  # type: ignore[attr-defined]
    setattr(model_class, name, method)
