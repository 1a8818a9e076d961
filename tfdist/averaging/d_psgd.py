"""DPSGD: each replica averages its weights with those of a few peers in each step, and no sum of all is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce.packed import packed_all_reduce
from tfdist.averaging.gossip_hook import Gossip, GossipHook, check_gossip, offsets_of
from tfdist.averaging.messages import Messages, Replayed
from tfdist.averaging.mixing import Mixing
from tfdist.keras_compat.local_steps.prepare import prepare_local_steps
from tfdist.keras_compat.optimizers.attach import attach


def DPSGD(optimizer: Any, *, mixing: str | Mixing = "ring", seen: str = "average") -> Any:
    """Makes an optimizer mix each replica's weights with those of its peers in each step; returns the optimizer.

    The next weights of a replica are the weighted mean of its own and its peers' weights from before the step, plus the
    update that the optimizer makes from the replica's own gradients. Slots of the optimizer, and the statistics of
    BatchNormalization, are those of each replica. The gradients are those of LocalSGD: in fit, the loss of a replica is
    the mean over its rows.

    `evaluate`, `predict`, saving, and the callbacks of epochs see the mean of the replicas; training goes on with the
    weights that each replica had.

    Args:
        optimizer: an optimizer of the Keras in use, under the strategies one_device, mirrored and
            multi_worker_mirrored.
        mixing: with which peers a replica averages, and how: "ring", "exponential", "one_peer_exponential" or
            "complete" (the functions of tfdist.averaging), or a Mixing for as many workers as there are replicas.
        seen: which weights evaluation, saving and callbacks see: "average", or "chief" for those of the first replica.

    Raises:
        ValueError: if an argument is out of its range, or if the optimizer has options that need all replicas in every
            step: use_ema, a loss scale, or Keras 2's legacy optimizers.

    Source: Lian et al. 2017 (1705.09056), algorithm 1.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.averaging import DPSGD
        >>> optimizer = DPSGD(tf.keras.optimizers.SGD(0.1), mixing="exponential")
        >>> isinstance(optimizer, tf.keras.optimizers.SGD)
        True
    """
    check_gossip(mixing, seen)
    prepare_local_steps(optimizer, DPSGD.__name__)
    return attach(optimizer, GossipHook(MixedWeights, (mixing,), seen))


class MixedWeights(Gossip):
    """The steps of D-PSGD: x_i = sum over j of W[i, j] x_j, plus the update of the optimizer; see Gossip."""

    program = DPSGD.__name__

    def step(self, strategy: Any, number: Any, update: Callable[[], None]) -> None:
        """See Gossip."""
        if not any(offsets_of(weights) for weights in self.mixing.rounds):
            update()
            return
        each_replica = strategy.extended.call_for_each_replica
        before, packs = each_replica(self._read)
        mixed = self.mixed(strategy, number, packs)
        update()
        self.assign(strategy, each_replica(self._after, args=(before, mixed)))

    def _read(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the weights of a replica, and their packs; called in replica context."""
        own = [tf.identity(variable) for variable in self.weights]
        messages: Any = Messages(bytes_per_pack=self.bytes_per_pack)
        packed_all_reduce(own, messages)
        return own, messages.sent

    def _after(self, before: list[tf.Tensor], mixed: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the next weights of a replica; called in replica context, after its update."""
        replayed: Any = Replayed(mixed, bytes_per_pack=self.bytes_per_pack)
        means = packed_all_reduce(before, replayed)
        return [
            mean + (tf.identity(variable) - old)
            for mean, variable, old in zip(means, self.weights, before, strict=True)
        ]
