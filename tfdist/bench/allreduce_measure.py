"""Measures how long a strategy takes to sum tensors over its replicas, and how many bytes it sends."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.allreduce.compression import Compression, compression_from_name
from tfdist.allreduce.compression.base import CompressionState
from tfdist.allreduce.native.switch import sending_with
from tfdist.allreduce.packed import packed_all_reduce
from tfdist.allreduce.streams import Streams
from tfdist.bench.wire import StreamRate, bytes_sent, interface_of
from tfdist.workers import exchange, worker_index

_TCP_RUNS = 3


class Bench:
    """Sums tensors over the replicas of a strategy and measures the sums.

    Every worker makes a Bench and calls the same methods in the same order.

    Args:
        strategy: a mirrored strategy, or a multi-worker mirrored strategy.
        algorithm: the all-reduce algorithm that the strategy was made with.
        transport: what carries the sums, "tensorflow" or "native"; the strategy has it.
        addresses: `host:port` of every worker, worker 0 first; empty in one process.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, *, algorithm: str, transport: str, addresses: Sequence[str]
    ) -> None:
        self._strategy, self._algorithm = strategy, algorithm
        self.transport = transport
        self._hosts = [address.rpartition(":")[0] for address in addresses]
        self._worker = worker_index(strategy)
        self._interface = interface_of(self._hosts[self._worker]) if addresses else None

    @property
    def worker(self) -> int:
        """The number of this worker, from 0."""
        return self._worker

    @property
    def replicas(self) -> int:
        """The number of replicas of all workers."""
        return int(self._strategy.num_replicas_in_sync)

    def tcp_rate(self, size: int) -> float | None:
        """Returns the bytes per second of plain TCP streams around the ring of workers; None in one process.

        Args:
            size: number of bytes that each worker sends.
        """
        if not self._hosts:
            return None
        stream = StreamRate(self._hosts[self._worker])
        ports = self._values_of_workers(stream.port, to="open a port")
        following = (self._worker + 1) % len(self._hosts)

        def rate_of_slowest_link() -> float:
            rate = stream.measure(self._hosts[following], int(ports[following]), size=size)
            return min(self._values_of_workers(rate, to="send a plain TCP stream"))

        # A ring is as fast as its slowest link; other work on the machines can only make a run slower.
        return max(rate_of_slowest_link() for _ in range(_TCP_RUNS))

    def measure(self, method: str, size: int, *, runs: int, bytes_per_pack: int | None = None) -> dict[str, Any]:
        """Measures one way of summing one tensor and returns a row of results.

        Args:
            method: "tensorflow" for TensorFlow's own sum, "none" for tfdist's sum without compression, or the name of
                a compression.
            size: bytes of the float32 tensor.
            runs: number of sums of which the median is taken.
            bytes_per_pack: size of a pack for the method "none"; None for the default.

        Returns:
            The arguments, the algorithm and the transport; `seconds`, the time of the median sum; `algbw` and `busbw`
            in bytes per second, as nccl-tests define them; `wire`, the most bytes that the interface of a worker sent,
            None in one process; `ring`, the bytes of float32 that each replica sends in a ring.
        """
        step = self._step(method, size, bytes_per_pack)
        to = f"sum {size:,} bytes"
        # The first call traces the function and opens connections.
        with sending_with(self.transport, self._strategy):
            step()
        times, sent = [], []
        for _ in range(runs):
            self._values_of_workers(0.0, to=to)
            before, begin = self._bytes_sent(), time.perf_counter()
            step()
            # A sum has ended when it has ended on every worker.
            times.append(max(self._values_of_workers(time.perf_counter() - begin, to=to)))
            sent.append(self._bytes_sent() - before)
        seconds = statistics.median(times)
        ring = 2 * (self.replicas - 1) / self.replicas * size
        return {
            "algorithm": self._algorithm,
            "transport": self.transport,
            "method": method,
            "size": size,
            "bytes_per_pack": bytes_per_pack,
            "seconds": seconds,
            "algbw": size / seconds,
            "busbw": ring / seconds,
            "wire": self._bytes_per_worker(statistics.median(sent)),
            "ring": ring,
        }

    def _step(self, method: str, size: int, bytes_per_pack: int | None) -> Callable[[], None]:
        """Returns a function that sums the tensor once and waits for the result."""
        strategy, elements = self._strategy, size // 4
        # PowerSGD compresses matrices: a shape as square as possible resembles the kernel of a dense layer.
        rows = next(number for number in range(math.isqrt(elements), 0, -1) if elements % number == 0)
        values = np.random.default_rng(self._worker).normal(size=(rows, elements // rows)).astype(np.float32)
        with strategy.scope():
            gradient = tf.Variable(values, trainable=False)
        compression = None if method in ("tensorflow", "none") else compression_from_name(method)
        compressed_sum = None if compression is None else self._compressed_sum(compression, values.shape)

        def replica_sum() -> tf.Tensor:
            value = gradient.read_value()
            if method == "tensorflow":
                context = tf.distribute.get_replica_context()
                return context.all_reduce(tf.distribute.ReduceOp.SUM, [value])[0]
            if compressed_sum is None:
                return packed_all_reduce([value], Streams(bytes_per_pack=bytes_per_pack))[0]
            return compressed_sum(value)

        @tf.function(autograph=False)
        def step() -> Any:
            # Only one element is returned: the host has to wait for the sum, but does not copy all of its elements.
            return strategy.run(lambda: tf.reshape(replica_sum(), [-1])[-1])

        def step_and_wait() -> None:
            for value in strategy.experimental_local_results(step()):
                value.numpy()

        return step_and_wait

    def _compressed_sum(self, compression: Compression, shape: tuple[int, ...]) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns a function that sums a gradient with a compression, in replica context."""
        with self._strategy.scope():
            initial = vars(compression.initial_state([shape]))
            variables = tf.nest.map_structure(lambda value: tf.Variable(value, trainable=False), initial)

        def compressed_sum(gradient: tf.Tensor) -> tf.Tensor:
            state = CompressionState(**tf.nest.map_structure(lambda variable: variable.read_value(), variables))
            exchanged = compression.exchange([gradient], state, Streams())
            # Training computes residuals and state in every step, so their time counts.
            with tf.control_dependencies([*exchanged.residuals, *tf.nest.flatten(vars(exchanged.state))]):
                return tf.identity(exchanged.totals[0])

        return compressed_sum

    def _bytes_sent(self) -> int:
        return bytes_sent(self._interface) if self._interface else 0

    def _bytes_per_worker(self, sent: float) -> float | None:
        """Returns the most bytes that any worker has sent; None in one process."""
        if not self._hosts:
            return None
        most = max(self._values_of_workers(sent, to="count the bytes sent"))
        # Workers on one machine all send through its loopback interface.
        return most / len(self._hosts) if self._interface == "lo" else most

    def _values_of_workers(self, value: float, *, to: str) -> list[float]:
        """Returns the values of all workers, that of worker 0 first; waits for all workers."""
        return [row[0] for row in exchange(self._strategy, [value], dtype="float64", to=to)]
