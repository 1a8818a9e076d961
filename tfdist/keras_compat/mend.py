"""Mend: a patch of an upstream defect. Every mend imports this file; this file imports no mend."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.tested import nearest_tested
from tfdist.keras_compat.version import KerasInUse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mend:
    """A patch of Keras or TensorFlow, with the conditions under which it is applied.

    Attributes:
        name: short name of the defect, such as "replicas_draw_alike".
        issue: upstream issue, such as "keras-team/keras#20585", or "not reported".
        strategies: names of the strategies that need the mend.
        keras: values of KerasInUse.name for which the mend is written.
        versions: first and last Keras release for which the mend is written, such as ((3, 8), (3, 15)). A release that
            was not tested counts as the nearest tested one, so that the check decides.
        defect_present: returns whether the installed Keras or TensorFlow has the defect.
        apply: applies the patch.
        defect: description of the defect for users, as in docs/keras.md.
        rows: rows of docs/conformance.md that show the defect and the mend.
        without_row: why no row can show the defect, if `rows` is empty.
        needed_by: returns whether a given strategy out of `strategies` needs the mend; None if all of them need it.
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
    without_row: str = ""
    needed_by: Callable[[Any], bool] | None = None

    def is_written_for(self, keras: KerasInUse) -> bool:
        """Returns whether the mend may be applied to this Keras, if its check finds the defect."""
        first, last = self.versions
        return keras.name in self.keras and first <= nearest_tested(keras) <= last

    def suits(self, kind: str, keras: KerasInUse, strategy: Any) -> bool:
        """Returns whether a strategy needs the mend with this Keras.

        Args:
            kind: the name of the strategy in create_strategy.
            keras: the Keras in use.
            strategy: the strategy; None before it is made, when mends without `needed_by` are not needed yet.
        """
        return (
            kind in self.strategies
            and self.is_written_for(keras)
            and (strategy is not None if self.needed_by is None else self.needed_by(strategy))
        )


def patch_method(model_class: Any, name: str, replace: Callable[[Callable], Callable]) -> None:
    """Replaces a method by `replace(method)`; keeps the name, documentation and signature of the method."""
    stock = getattr(model_class, name)
    method = replace(stock)
    method.__name__, method.__doc__ = name, stock.__doc__
    method.__signature__ = inspect.signature(stock)  # type: ignore[attr-defined]
    setattr(model_class, name, method)
