"""GradientHook: accumulates gradients, sums them over replicas, and calls the optimizer's update with the sums.

This file is independent of Keras. The adapters in tfdist/keras_compat/optimizers call `run` with the gradients of this
replica and with the update of their Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.accumulation import Accumulation
from tfdist.allreduce.aggregation import is_dense
from tfdist.allreduce.compression.described import described
from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.path import GradientPath
from tfdist.allreduce.update_hook import UpdateHook, check_strategy, variable_key


class GradientHook(UpdateHook):
    """State that DistributedOptimizer attaches to an optimizer.

    Args:
        options: options of the sum over replicas; None for those of the strategy.
        passes: number of backward passes per update.
    """

    _places: dict[Any, int]

    def __init__(self, options: AllReduceOptions | None, passes: int) -> None:
        super().__init__()
        self.passes = passes
        self.path = GradientPath(options)
        self.accumulation = Accumulation(passes) if passes > 1 else None
        # The place of each variable among the variables that the hook was built for. Assigned with object.__setattr__,
        # since AutoTrackable would store the dictionary in checkpoints.
        object.__setattr__(self, "_places", {})

    @property
    def calls_update_later(self) -> bool:
        """See UpdateHook."""
        return self.accumulation is not None

    def recipe(self) -> tuple[Callable[..., UpdateHook], tuple[Any, ...]]:
        """See UpdateHook."""
        return GradientHook, (self.path.asked, self.passes)

    def description(self) -> dict[str, Any]:
        """See UpdateHook."""
        asked = self.path.asked
        return {
            "backward_passes_per_step": self.passes,
            "bytes_per_pack": asked.bytes_per_pack if asked else None,
            "compression": described(asked.compression) if asked else None,
        }

    def run(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        scale: Any,
        update: Callable[[list[Any]], Any],
        *,
        known: Sequence[Any] = (),
        rows: Any = None,
    ) -> Any:
        """Accumulates gradients, sums them over replicas, and calls the update; called in replica context.

        With several passes per update, all passes but the last one only accumulate.

        Args:
            gradients: the gradients of this replica.
            variables: the variable of each gradient.
            scale: the loss scale that the gradients contain, or None.
            update: takes the gradients of the global batch.
            known: all variables that the optimizer was built with, if the optimizer has a list of them.
            rows: not used, because the gradients are weighted already.

        Raises:
            ValueError: if the strategy is not supported, or if the variables are not those of the first call.
        """
        gradients = [
            tf.ensure_shape(gradient, variable.shape) if is_dense(gradient) else gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        self._build_once(gradients, variables, known)
        indices = self._indices(variables)

        def sum_and_update(given: Sequence[Any]) -> Any:
            return update(self.path.sum_gradients(given, indices=indices, scale=scale))

        if self.accumulation is None:
            return sum_and_update(gradients)
        # The passes of an update may give the variables in different orders.
        position = {place: i for i, place in enumerate(indices)}
        return self.accumulation.add(
            [gradients[position[place]] for place in range(len(indices))],
            lambda means: sum_and_update([means[place] for place in indices]),
        )

    def _indices(self, variables: Sequence[Any]) -> list[int]:
        """Returns the places of variables among those that the hook was built for; for new variables, their number."""
        unknown = [variable.name for variable in variables if variable_key(variable) not in self._places]
        # Without compression the hook has no state for each variable, so that new variables do no harm.
        refused = bool(unknown) and self.path.compresses
        if refused or (self.accumulation is not None and (unknown or len(variables) != len(self._places))):
            raise ValueError(
                "expected the variables that DistributedOptimizer was first given gradients of, received "
                f"{', '.join(unknown) or f'{len(variables)} of {len(self._places)}'}; "
                "use a separate optimizer for each set of variables."
            )
        return [self._places.get(variable_key(variable), len(self._places)) for variable in variables]

    def _build_once(self, gradients: Sequence[Any], variables: Sequence[Any], known: Sequence[Any]) -> None:
        context = tf.distribute.get_replica_context()
        check_strategy(context.strategy, self.program)
        if self.path.built:
            return
        given = {variable_key(variable) for variable in variables}
        others = [variable for variable in known if variable_key(variable) not in given]
        everything = [*variables, *others]
        shapes = [tuple(variable.shape) for variable in everything]
        dtypes = [tf.as_dtype(variable.dtype).name for variable in everything]
        # Accumulation converts sparse gradients to dense ones.
        dense = [
            self.accumulation is not None or not isinstance(gradient, tf.IndexedSlices)
            for gradient in [*gradients, *(None for _ in others)]
        ]

        def across(strategy: Any) -> None:
            # Every replica calls this function; the first one makes the variables.
            if self.path.built:
                return
            with tf.init_scope(), strategy.scope():
                self._places.update({variable_key(variable): i for i, variable in enumerate(everything)})
                self.path.build([shape if one else None for shape, one in zip(shapes, dense, strict=True)], dtypes)
                if self.accumulation is not None:
                    self.accumulation.build(shapes, dtypes)

        context.merge_call(across)
