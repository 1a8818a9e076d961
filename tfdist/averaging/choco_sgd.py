"""ChocoSGD: each replica sends compressed differences of its weights to a few peers, which keep estimates of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce import Compression, ErrorFeedback, PowerSGD
from tfdist.allreduce.compression import CompressionState, compression_from_name
from tfdist.allreduce.packed import packed_all_reduce
from tfdist.allreduce.per_replica import PerReplica
from tfdist.averaging.gossip_hook import Gossip, GossipHook, check_gossip, offsets_of
from tfdist.averaging.messages import Messages, Replayed
from tfdist.averaging.mixing import Mixing
from tfdist.averaging.neighbours import receive
from tfdist.averaging.replica_values import components
from tfdist.keras_compat.local_steps.prepare import prepare_local_steps
from tfdist.keras_compat.optimizers.attach import attach
from tfdist.keras_compat.optimizers.base import compute_dtype


def ChocoSGD(
    optimizer: Any,
    *,
    consensus_rate: float,
    compression: str | Compression = "topk:0.01",
    mixing: str | Mixing = "ring",
    seen: str = "average",
) -> Any:
    """Makes an optimizer send compressed differences of weights to a few peers in each step; returns the optimizer.

    A replica and its peers keep an estimate of the replica's weights. After the update of the optimizer, a replica
    sends the compressed difference of its weights from their estimate, which all of them add to the estimate. Then the
    replica moves its weights towards the mean of the estimates of its peers. The estimates begin with the weights
    before the first step, which all replicas have in common. A replica keeps its own estimate and those of its peers:
    with a ring, three times the memory of the weights. For gradients, slots, statistics and what is seen, see DPSGD.

    Args:
        optimizer: an optimizer of the Keras in use, under the strategies one_device, mirrored and
            multi_worker_mirrored.
        consensus_rate: how far a replica moves towards the mean, above 0 and at most 1; gamma of the paper. The fewer
            bytes are sent, the smaller it has to be.
        compression: of the differences: "fp16", "bf16", "topk", "threshold", the last two with a colon and their number
            as in "topk:0.01", or a value of tfdist.allreduce, without error feedback, which the estimates replace.
            Small arrays are sent uncompressed, as the compression decides. A compression of your own has to make its
            totals of what it receives alone.
        mixing: with which peers a replica averages, and how, as for DPSGD; with one matrix.
        seen: which weights evaluation, saving and callbacks see: "average", or "chief" for those of the first replica.

    Raises:
        ValueError: if an argument is out of its range, or if the optimizer has options that need all replicas in every
            step: use_ema, a loss scale, or Keras 2's legacy optimizers.

    Source: Koloskova, Stich and Jaggi 2019 (1902.00340), algorithm 2. Its proof is for symmetric mixing matrices, such
    as those of "ring".

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.averaging import ChocoSGD
        >>> optimizer = ChocoSGD(tf.keras.optimizers.SGD(0.1), compression="topk:0.1", consensus_rate=0.3)
        >>> isinstance(optimizer, tf.keras.optimizers.SGD)
        True
    """
    check_gossip(mixing, seen)
    is_number = isinstance(consensus_rate, (int, float)) and not isinstance(consensus_rate, bool)
    if not is_number or not 0 < consensus_rate <= 1:
        raise ValueError(f"expected consensus_rate to be above 0 and at most 1, received {consensus_rate!r}.")
    prepare_local_steps(optimizer, ChocoSGD.__name__)
    options = (mixing, _compression(compression), float(consensus_rate))
    return attach(optimizer, GossipHook(MixedEstimates, options, seen))


def _compression(given: Any) -> Compression:
    found = compression_from_name(given) if isinstance(given, str) else given
    if isinstance(given, str) and isinstance(found, ErrorFeedback):
        found = found.inner
    if not isinstance(found, Compression) or isinstance(found, (ErrorFeedback, PowerSGD)):
        # The products of PowerSGD may be rounded differently on another machine, whose estimates would then drift away.
        raise ValueError(
            "expected compression of ChocoSGD to be fp16, bf16, topk or threshold, or a value of tfdist.allreduce "
            f"without error feedback, such as TopK(0.01), received {given!r}; to send weights uncompressed, take DPSGD."
        )
    return found


class _Estimates:
    """The estimates of the weights of one replica, on this replica or on a peer."""

    def __init__(self, weights: Sequence[Any], whose: str) -> None:
        self.variables = [
            PerReplica(tf.zeros(weight.shape, compute_dtype(weight)), name=f"estimate{place}_of_{whose}")
            for place, weight in enumerate(weights)
        ]

    def read(self) -> list[tf.Tensor]:
        return [variable.read() for variable in self.variables]

    def assign(self, values: Sequence[tf.Tensor]) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)


class MixedEstimates(Gossip):
    """The steps of CHOCO-SGD: x_i moves by gamma times the sum over j of W[i, j] (e_j - e_i); see Gossip.

    Args:
        mixing: see Gossip.
        compression: of the differences.
        rate: gamma.
    """

    program = ChocoSGD.__name__

    def __init__(self, mixing: str | Mixing, compression: Compression, rate: float) -> None:
        super().__init__(mixing)
        self._compression, self._rate = compression, rate
        # Checkpoints store the variables by their place in this list.
        self._state: list[PerReplica] = []
        for name, empty in (("_own", None), ("_peers", []), ("_taken", []), ("_values", []), ("_shared", {})):
            object.__setattr__(self, name, empty)

    _own: _Estimates
    _peers: list[_Estimates]
    _taken: list[int]
    _values: list[dict[str, PerReplica]]
    _shared: dict[str, PerReplica]

    def check(self, mixing: Mixing) -> None:
        """Raises ValueError if the mixing has several matrices."""
        if len(mixing.rounds) > 1:
            raise ValueError(
                "expected a mixing with one matrix for ChocoSGD, whose peers have to receive each difference, received "
                f"one with {len(mixing.rounds)} matrices in turn; take exponential in place of one_peer_exponential."
            )

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the estimates and the state of the compression; see Gossip."""
        super().build(variables)
        offsets = self._offsets
        if not offsets:
            return
        # For which replicas and peers the estimates have begun. Those of others, from a checkpoint, begin again, and so
        # do those of a checkpoint of another algorithm, which has none.
        self._begun_for = tf.Variable(
            tf.zeros([], tf.int64),
            trainable=False,
            name="estimates_begun_for",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        object.__setattr__(self, "_own", _Estimates(self.weights, "itself"))
        self._peers.extend(_Estimates(self.weights, f"peer{place}") for place in range(len(offsets)))
        for estimates in (self._own, *self._peers):
            self._state.extend(estimates.variables)
        shapes = [tuple(weight.shape) for weight in self.weights]
        self._taken.extend(place for place, shape in enumerate(shapes) if self._compression.takes(shape))
        first = self._compression.initial_state([shapes[place] for place in self._taken])
        for number, values in enumerate(first.of_gradients):
            self._values.append({name: self._make(value, f"{name}{number}") for name, value in values.items()})
        self._shared.update({name: self._make(value, name, shared=True) for name, value in first.shared.items()})

    @property
    def _offsets(self) -> list[int]:
        return offsets_of(self.mixing.rounds[0])

    def _make(self, initial: Any, name: str, *, shared: bool = False) -> PerReplica:
        self._state.append(PerReplica(initial, name=name, shared=shared))
        return self._state[-1]

    def step(self, strategy: Any, number: Any, update: Callable[[], None]) -> None:
        """See Gossip."""
        if not self._offsets:
            update()
            return
        each_replica = strategy.extended.call_for_each_replica
        replicas = strategy.num_replicas_in_sync
        # A number that stands for both.
        peers = zlib.crc32(repr((replicas, self._offsets)).encode())
        due = tf.not_equal(self._begun_for, peers)

        def average() -> None:
            found = each_replica(lambda: self._combined(tf.constant(1 / replicas, tf.float64)))
            self.assign(strategy, found[: len(self.weights)])

        # Before the first step of a training, the replicas have equal weights.
        tf.cond(tf.logical_and(due, number > 0), average, _nothing)
        tf.cond(due, lambda: each_replica(self._begin), _nothing)
        self._begun_for.assign(peers)
        update()
        differences, messages = each_replica(self._compress)
        received = receive(strategy, messages, self._offsets)
        self.assign(strategy, each_replica(self._mix, args=(differences, received)))

    def restart(self, rows: PerReplica, are_set: Sequence[bool]) -> None:
        """See Meeting: the estimates of these weights, which all replicas have in common now, begin again."""
        super().restart(rows, are_set)
        for estimates in (self._own, *self._peers) if self._offsets else ():
            for estimate, weight, is_set in zip(estimates.variables, self.weights, are_set, strict=True):
                if is_set:
                    estimate.assign_local([_widened(one) for one in components(weight)])

    def _begin(self) -> None:
        """Begins the estimates with the weights, which all replicas have in common; called in replica context."""
        for estimates in (self._own, *self._peers):
            estimates.assign([_widened(variable) for variable in self.weights])

    def _compress(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the differences that peers will read, and the messages with them; called in replica context."""
        own = [_widened(v) - e for v, e in zip(self.weights, self._own.read(), strict=True)]
        messages = Messages(bytes_per_pack=self.bytes_per_pack)
        state = self._state_now()
        differences, after = self._arrived(own, state, messages)
        for variables, values in zip(self._values, after.of_gradients, strict=bool(after.of_gradients)):
            for name, value in values.items():
                variables[name].assign(value)
        for name, value in after.shared.items():
            self._shared[name].assign(value)
        return differences, messages.sent

    def _state_now(self) -> CompressionState:
        return CompressionState(
            of_gradients=tuple({name: one.read() for name, one in values.items()} for values in self._values),
            shared={name: variable.read() for name, variable in self._shared.items()},
        )

    def _arrived(
        self, given: Sequence[tf.Tensor], state: CompressionState, messages: Any
    ) -> tuple[list[tf.Tensor], CompressionState]:
        """Returns what arrives of differences, and the next state of the compression."""
        arrived = list(given)
        if self._taken:
            # Compressions take float32. What a float64 loses remains in the next difference.
            found = self._compression.exchange(
                [tf.cast(given[place], tf.float32) for place in self._taken], state, messages
            )
            state = found.state
            for place, total in zip(self._taken, found.totals, strict=True):
                arrived[place] = tf.cast(total, given[place].dtype)
        others = [place for place in range(len(given)) if place not in self._taken]
        for place, total in zip(others, packed_all_reduce([given[i] for i in others], messages), strict=True):
            arrived[place] = total
        return arrived, state

    def _mix(self, differences: list[tf.Tensor], received: list[list[tf.Tensor]]) -> list[tf.Tensor]:
        """Returns the next weights of a replica; called in replica context."""
        own = [e + q for e, q in zip(self._own.read(), differences, strict=True)]
        self._own.assign(own)
        weights = dict(self.mixing.rounds[0])
        moves = [tf.zeros_like(one) for one in own]
        state = self._state_now()
        for offset, estimates, messages in zip(self._offsets, self._peers, received, strict=True):
            # The messages take the place of what is computed from the zeros.
            replayed = Replayed(messages, bytes_per_pack=self.bytes_per_pack)
            arrived, _ = self._arrived([tf.zeros_like(one) for one in own], state, replayed)
            after = [e + q for e, q in zip(estimates.read(), arrived, strict=True)]
            estimates.assign(after)
            # An estimate is kept for each peer: a sum of them would gather errors of rounding, which move the weights.
            moves = [
                move + tf.constant(weights[offset], move.dtype) * (e - own_estimate)
                for move, e, own_estimate in zip(moves, after, own, strict=True)
            ]
        return [
            tf.cast(_widened(variable) + tf.constant(self._rate, move.dtype) * move, variable.dtype)
            for variable, move in zip(self.weights, moves, strict=True)
        ]


def _widened(variable: Any) -> tf.Tensor:
    return tf.cast(tf.identity(variable), compute_dtype(variable))


def _nothing() -> None:
    return None
