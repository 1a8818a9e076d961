"""GossipHook: updates each replica with its own gradients, and mixes its weights with those of a few peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.options_of import all_reduce_of
from tfdist.allreduce.update_hook import UpdateHook
from tfdist.averaging.local_hook import LocalHook
from tfdist.averaging.meeting import Meeting
from tfdist.averaging.mixing import Mixing, complete, exponential, one_peer_exponential, ring
from tfdist.averaging.neighbours import gathers, receive
from tfdist.averaging.outer import Average
from tfdist.averaging.replica_values import multiplied
from tfdist.averaging.schedule import Meetings

_NAMED: dict[str, Callable[[int], Mixing]] = {
    "ring": ring,
    "exponential": exponential,
    "one_peer_exponential": one_peer_exponential,
    "complete": complete,
}


class Gossip(Meeting):
    """What the replicas do in a step. Nothing but the weights is mixed; readers see the mean of the statistics too.

    Args:
        mixing: a name, or a Mixing for the number of replicas.

    Attributes:
        program: the name by which users know the algorithm, for messages.
        mixing: the mixing matrices, after `build`.
    """

    program = ""
    mixing: Mixing

    def __init__(self, mixing: str | Mixing) -> None:
        # The compression of the strategy is that of sums of gradients, which are not made here.
        super().__init__(Average(), ("weights", "statistics"), AllReduceOptions(compression="none"))
        self.asked = mixing

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the state; see Meeting.

        Raises:
            ValueError: if the mixing is for another number of replicas, or if the strategy compresses gradients.
        """
        strategy = tf.distribute.get_strategy()
        compression = all_reduce_of(strategy).compressor
        if compression is not None:
            raise ValueError(
                f"expected a strategy without all_reduce.compression for {self.program}, received {compression}; leave "
                "it out, and use ChocoSGD with this compression."
            )
        replicas = strategy.num_replicas_in_sync
        mixing = _NAMED[self.asked](replicas) if isinstance(self.asked, str) else self.asked
        if mixing.workers != replicas:
            raise ValueError(
                f"expected a mixing for {replicas} workers, as many as the strategy has replicas, received one for "
                f"{mixing.workers}; make it for {replicas}, or give its name."
            )
        self.check(mixing)
        super().build(variables)
        # Not tracked, because it is a value.
        object.__setattr__(self, "mixing", mixing)
        if gathers(strategy) and any(offsets_of(weights) for weights in mixing.rounds):
            get_logger().info(
                "%s: each replica receives from all %d others and not from its peers alone, because the strategy does "
                "not have the native transport; on CPUs, install it with `pip install '.[native]'` in a checkout of "
                "tfdist",
                self.program,
                replicas - 1,
            )

    def check(self, mixing: Mixing) -> None:
        """Does nothing; an algorithm may raise ValueError for some mixings."""

    @property
    def bytes_per_pack(self) -> int | None:
        """Size of the packs that are sent, as the strategy was asked; None for the default."""
        return self.path.options.bytes_per_pack

    def step(self, strategy: Any, number: Any, update: Callable[[], None]) -> None:
        """Makes a step; called in cross-replica context.

        Args:
            strategy: the strategy.
            number: the number of the step, counted from 0, an integer scalar.
            update: updates each replica with its own gradients.
        """
        raise NotImplementedError

    def assign(self, strategy: Any, values: Sequence[Any]) -> None:
        """Gives each replica its next weights; called in cross-replica context."""
        for variable, value in zip(self.weights, values, strict=True):
            strategy.extended.update(variable, lambda own, value: own.assign(value), args=(value,))

    def mixed(self, strategy: Any, number: Any, tensors: Sequence[Any]) -> list[Any]:
        """Returns the mixed tensors of each replica; called in cross-replica context.

        Args:
            strategy: the strategy.
            number: the number of the step, which decides which matrix is used.
            tensors: those of each replica.
        """
        rounds = self.mixing.rounds

        def of_round(weights: tuple[tuple[int, float], ...]) -> list[Any]:
            received = receive(strategy, tensors, offsets_of(weights))

            def add_up(own: list[Any], received: list[list[Any]]) -> list[Any]:
                by_offset = {0: own, **dict(zip(offsets_of(weights), received, strict=True))}
                parts = [[_weighted(one, weight) for one in by_offset[offset]] for offset, weight in weights]
                return [tf.add_n(column) for column in zip(*parts, strict=True)]

            return strategy.extended.call_for_each_replica(add_up, args=(list(tensors), received))

        if len(rounds) == 1:
            return of_round(rounds[0])

        def branch(weights: tuple[tuple[int, float], ...]) -> Callable[[], list[Any]]:
            return lambda: [strategy.experimental_local_results(one) for one in of_round(weights)]

        # Outside of the replicas: inside of a replica's condition, merge_call fails (keras-team/keras#20582).
        place = tf.cast(number % len(rounds), tf.int32)
        local = tf.switch_case(place, [branch(weights) for weights in rounds])
        rows = iter([list(row) for row in zip(*local, strict=True)])
        return strategy.experimental_distribute_values_from_function(lambda _: next(rows))


class GossipHook(LocalHook):
    """State that DPSGD and ChocoSGD attach to an optimizer.

    Args:
        kind: what the replicas do in a step.
        options: the arguments of `kind`.
        seen: "average" or "chief": which weights readers see.
    """

    meeting: Gossip

    def __init__(self, kind: Callable[..., Gossip], options: tuple[Any, ...], seen: str) -> None:
        super().__init__(Meetings(every=1), Average(), (), seen, None)
        self.meeting = kind(*options)
        self.program = self.meeting.program
        object.__setattr__(self, "_made_with", (kind, options, seen))

    @property
    def counts_alone(self) -> bool:
        """See UpdateHook."""
        return True

    def recipe(self) -> tuple[Callable[..., UpdateHook], tuple[Any, ...]]:
        """See UpdateHook."""
        return GossipHook, self._made_with

    def last_meeting(self) -> int | None:
        """See UpdateHook."""
        return None

    def total(self, part: tf.Tensor) -> tf.Tensor:
        """Returns what the replica divides by: as if all replicas had as much."""
        return part * tf.cast(tf.distribute.get_replica_context().num_replicas_in_sync, part.dtype)

    def _step(
        self,
        strategy: Any,
        given: list[Any],
        weight: Any,
        update: Callable[[list[Any]], Any],
        places: Sequence[int],
    ) -> None:
        replicas = strategy.num_replicas_in_sync

        def alone(gradients: list[Any]) -> None:
            update([multiplied(gradient, replicas) for gradient in gradients])

        self.meeting.step(
            strategy,
            tf.convert_to_tensor(self._steps),
            lambda: strategy.extended.call_for_each_replica(alone, args=(given,)),
        )
        self._steps.assign_add(1)

    def _position(self) -> tuple[int, int]:
        """Returns the number of steps, and one step since the replicas have had equal weights, if there are steps."""
        steps = int(self._steps.numpy())
        return steps, min(steps, 1)


def check_gossip(mixing: Any, seen: Any) -> None:
    """Raises ValueError for arguments of DPSGD and ChocoSGD that are out of their range.

    Args:
        mixing: the argument `mixing`.
        seen: the argument `seen`.
    """
    if not isinstance(mixing, Mixing) and (not isinstance(mixing, str) or mixing not in _NAMED):
        raise ValueError(
            f"expected mixing to be one of {', '.join(_NAMED)}, or a Mixing of tfdist.averaging, received {mixing!r}."
        )
    if seen not in ("average", "chief"):
        raise ValueError(f"expected seen to be average or chief, received {seen!r}.")


def offsets_of(weights: Sequence[tuple[int, float]]) -> list[int]:
    """Returns the offsets from which a replica receives in a round.

    Args:
        weights: offsets with their weights, those of a round of a Mixing.

    Example:
        >>> from tfdist.averaging.gossip_hook import offsets_of
        >>> offsets_of([(0, 0.5), (2, 0.5)])
        [2]
    """
    return [offset for offset, _ in weights if offset]


def _weighted(tensor: Any, weight: float) -> Any:
    return tensor * tf.constant(weight, tensor.dtype)
