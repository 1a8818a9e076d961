"""`tfdist bench allreduce`: time, bandwidth and bytes of summing gradients over the replicas of this cluster."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.allreduce.compression import COMPRESSIONS, compression_from_name
from tfdist.allreduce.options import ALGORITHMS, AllReduceOptions
from tfdist.bench.extra import require

SIZES = ("1K", "16K", "256K", "1M", "8M", "32M", "256M")
PACKS = ("512K", "1M", "2M", "4M", "8M", "16M")
# The benchmark's gradients have a deviation of 1, so that this tau sends one element of eighty.
METHODS = ("tensorflow", "none", "fp16", "bf16", "topk:0.01", "threshold:2.5", "powersgd:4")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# What of a method's time is within the noise of the best.
_AS_GOOD = 1.02
_STREAMS = 3


def size_from_text(text: str) -> int:
    """Returns a number of bytes from a number with K, M or G behind it.

    Example:
        >>> from tfdist.bench.allreduce import size_from_text
        >>> size_from_text("32M")
        33554432
    """
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    if not number.isdecimal() or int(number) * unit < 4:
        raise argparse.ArgumentTypeError(f"expected at least 4 bytes as in 32M, received {text!r}")
    return int(number) * unit


def size_as_text(size: int) -> str:
    """Returns a number of bytes as it is written on the command line."""
    for unit, factor in reversed(_UNITS.items()):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


class Bench:
    """Sums tensors over the replicas of a strategy, and measures it.

    Args:
        strategy: mirrored, or multi-worker mirrored in every worker at once.
        algorithm: of the strategy.
        addresses: of the workers; empty for one process.
        rank: of this worker.
    """

    def __init__(self, strategy: Any, algorithm: str, addresses: list[str], rank: int) -> None:
        from tfdist.bench.wire import interface_of

        self._strategy, self._algorithm, self._addresses, self._rank = strategy, algorithm, addresses, rank
        self._replicas = strategy.num_replicas_in_sync
        self._interface = interface_of(addresses[rank].rpartition(":")[0]) if addresses else None

    def usable_rate(self, size: int) -> float | None:
        """Returns bytes a second of plain TCP streams round the ring of workers; None within one process."""
        if not self._addresses:
            return None
        from tfdist.bench.wire import StreamRate

        host = self._addresses[self._rank].rpartition(":")[0]
        stream = StreamRate(host)
        ports = self._exchange(float(stream.port))
        following = (self._rank + 1) % len(self._addresses)
        target = self._addresses[following].rpartition(":")[0], int(ports[following])
        # The ring is as fast as its slowest link, and the link as its best run.
        return max(min(self._exchange(stream.measure(*target, size=size))) for _ in range(_STREAMS))

    def measure(self, method: str, size: int, *, runs: int, bytes_per_pack: int | None = None) -> dict[str, Any]:
        """Returns a row: the median time of a sum, bandwidths, and bytes on the wire of each rank.

        Args:
            method: "tensorflow", "none" (of tfdist, without compression), or the name of a compression.
            size: bytes of float32 to sum.
            runs: of which the median is taken.
            bytes_per_pack: of method "none".
        """
        step = self._step(method, size, bytes_per_pack)
        # The first one traces, and opens connections.
        step()
        times, sent = [], []
        for _ in range(runs):
            self._exchange(0.0)
            before, begin = self._sent(), time.perf_counter()
            step()
            # A step is over when it is over everywhere.
            times.append(max(self._exchange(time.perf_counter() - begin)))
            sent.append(self._sent() - before)
        seconds = statistics.median(times)
        share = 2 * (self._replicas - 1) / self._replicas
        wire = max(self._exchange(float(statistics.median(sent)))) if self._addresses else None
        if wire is not None and self._interface == "lo":
            # All workers send through this one.
            wire /= len(self._addresses)
        return {
            "algorithm": self._algorithm,
            "method": method,
            "size": size,
            "bytes_per_pack": bytes_per_pack,
            "seconds": seconds,
            "algbw": size / seconds,
            "busbw": share * size / seconds,
            "wire": wire,
            "ring": share * size,
        }

    def _step(self, method: str, size: int, bytes_per_pack: int | None) -> Callable[[], None]:
        import numpy as np
        import tensorflow as tf

        from tfdist.allreduce.packed import packed_all_reduce
        from tfdist.allreduce.streams import Streams

        strategy, elements = self._strategy, size // 4
        # As nearly square as can be, as the kernel of a dense layer; a rank needs two axes.
        rows = next(one for one in range(math.isqrt(elements), 0, -1) if elements % one == 0)
        gradient = np.random.default_rng(self._rank).normal(size=(rows, elements // rows)).astype(np.float32)
        with strategy.scope():
            held = tf.Variable(gradient, trainable=False)
        compression = None if method in ("tensorflow", "none") else compression_from_name(method)
        variables = compression.variables([gradient.shape]) if compression is not None else []
        with strategy.scope():
            kept = {one.name: tf.Variable(one.initial, trainable=False) for one in variables}

        def replica() -> Any:
            value = held.read_value()
            if method == "tensorflow":
                context = tf.distribute.get_replica_context()
                return context.all_reduce(tf.distribute.ReduceOp.SUM, [value])[0]
            if compression is None:
                return packed_all_reduce([value], Streams(bytes_per_pack=bytes_per_pack))[0]
            found = compression.exchange([value], {name: one.read_value() for name, one in kept.items()}, Streams())
            with tf.control_dependencies([*found.left, *found.kept.values()]):
                return tf.identity(found.totals[0])

        @tf.function(autograph=False)
        def step() -> Any:
            # One number of the result: enough to wait for, little to copy.
            return strategy.run(lambda: tf.reshape(replica(), [-1])[-1])

        return lambda: [one.numpy() for one in strategy.experimental_local_results(step())]  # type: ignore[return-value]

    def _sent(self) -> int:
        from tfdist.bench.wire import bytes_sent

        return bytes_sent(self._interface) if self._interface else 0

    def _exchange(self, value: float) -> list[float]:
        """Returns a number of every worker; waits for all of them."""
        import tensorflow as tf

        if not self._addresses:
            return [value]
        workers = len(self._addresses)
        row = [value if number == self._rank else 0.0 for number in range(workers)]
        local = self._replicas // workers

        def of_replica(context: Any) -> tf.Tensor:
            first = context.replica_id_in_sync_group % local == 0
            return tf.constant(row if first else [0.0] * workers, tf.float64)

        values = self._strategy.experimental_distribute_values_from_function(of_replica)
        return [float(one) for one in self._strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None).numpy()]


def recommend(rows: list[dict[str, Any]]) -> int:
    """Returns the size of a pack that is as good as the best; the smallest such, which can overlap the most.

    Args:
        rows: of one size of gradients, each with its bytes_per_pack.

    Example:
        >>> from tfdist.bench.allreduce import recommend
        >>> recommend([{"bytes_per_pack": 1, "seconds": 2.0}, {"bytes_per_pack": 4, "seconds": 1.0}])
        4
    """
    best = min(row["seconds"] for row in rows)
    return min(int(row["bytes_per_pack"]) for row in rows if row["seconds"] <= _AS_GOOD * best)


def table(rows: list[dict[str, Any]], usable: float | None) -> Any:
    """Returns the rows as a table of rich."""
    import rich.box
    from rich.table import Table

    result = Table(box=rich.box.SIMPLE_HEAD)
    titles = (
        "size",
        "algorithm",
        "method",
        "pack",
        "ms",
        "algbw MB/s",
        "busbw MB/s",
        "of usable",
        "wire bytes",
        "of ring",
    )
    for title in titles:
        result.add_column(title, justify="left" if title in ("algorithm", "method") else "right", no_wrap=True)
    for row in rows:
        wire = row["wire"]
        result.add_row(
            size_as_text(row["size"]),
            row["algorithm"],
            row["method"],
            size_as_text(row["bytes_per_pack"]) if row["bytes_per_pack"] else "",
            f"{1000 * row['seconds']:.2f}",
            f"{row['algbw'] / 1e6:.1f}",
            f"{row['busbw'] / 1e6:.1f}",
            f"{row['busbw'] / usable:.2f}" if usable else "",
            f"{wire:,.0f}" if wire is not None else "",
            f"{wire / row['ring']:.3f}" if wire is not None else "",
        )
    return result


def plot(rows: list[dict[str, Any]], usable: float | None, path: Path) -> None:
    """Draws the bus bandwidth of every method over the size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    figure, axis = pyplot.subplots(figsize=(7, 4.5))
    for algorithm, method in dict.fromkeys((row["algorithm"], row["method"]) for row in rows):
        points = [
            (row["size"], row["busbw"] / 1e6)
            for row in rows
            if (row["algorithm"], row["method"]) == (algorithm, method)
        ]
        label = "tfdist" if method == "none" else method
        style = ("-", "--", ":")[algorithms.index(algorithm) % 3]
        label = label if len(algorithms) == 1 else f"{label}, {algorithm}"
        axis.plot(*zip(*points, strict=True), marker="o", linestyle=style, label=label)
    if usable:
        axis.axhline(usable / 1e6, color="k", linestyle="--", label="plain TCP")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    sizes = sorted({row["size"] for row in rows})
    axis.set_xticks(sizes, [size_as_text(size) for size in sizes])
    axis.set_xlabel("bytes of float32")
    axis.set_ylabel("busbw (MB/s)")
    axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv: list[str]) -> int:
    """Runs the command line, in every worker of a cluster; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tfdist bench allreduce",
        description=f"{__doc__} Start it in every worker, for example with "
        "`tfdist launch --workers 2 -m tfdist bench allreduce`; alone it sums over --devices of this process. "
        "busbw is size / time * 2(n-1)/n, that of nccl-tests; usable is a plain TCP stream round the workers.",
    )
    parser.add_argument("--size", action="append", type=size_from_text, help="bytes, as in 32M; may be repeated")
    parser.add_argument(
        "--method",
        action="append",
        help=f"tensorflow, {', '.join(COMPRESSIONS)} (none: tfdist without compression); may be repeated",
    )
    parser.add_argument(
        "--algorithm",
        action="append",
        choices=ALGORITHMS,
        help="of the strategy; in one process it may be repeated, and all that can be is the default",
    )
    parser.add_argument("--devices", type=int, default=2, help="of one process")
    parser.add_argument("--runs", type=int, default=5, help="of which the median is taken")
    parser.add_argument("--output", type=Path, default=Path("bench-allreduce"), help="folder of json and png")
    arguments = parser.parse_args(argv)
    methods = arguments.method or METHODS
    try:
        for method in methods:
            if method != "tensorflow":
                compression_from_name(method)
    except ValueError as error:
        parser.error(str(error))
    if arguments.runs < 1:
        parser.error("expected --runs of at least 1")
    require(parser, "matplotlib", "psutil")
    from tfdist.cluster import ClusterConfig
    from tfdist.strategies import create_strategy

    cluster = ClusterConfig.detect()
    if cluster.is_distributed and len(arguments.algorithm or ()) > 1:
        parser.error(f"expected one --algorithm across workers, received {', '.join(arguments.algorithm)}")
    algorithms = arguments.algorithm or (["auto"] if cluster.is_distributed else _algorithms())
    addresses = [address for job in ("chief", "worker") for address in cluster.jobs.get(job, ())]
    rank = addresses.index(cluster.address) if cluster.is_distributed and cluster.address else 0
    benches = []
    try:
        for algorithm in algorithms:
            options = AllReduceOptions(algorithm=algorithm)
            if cluster.is_distributed:
                strategy = create_strategy("multi_worker_mirrored", cluster=cluster, all_reduce=options)
            else:
                strategy = create_strategy("mirrored", devices=arguments.devices, all_reduce=options)
            benches.append(Bench(strategy, algorithm, addresses, rank))
    except ValueError as error:
        parser.exit(2, f"tfdist bench allreduce: {error}\n")
    bench = benches[0]
    sizes = arguments.size or [size_from_text(size) for size in SIZES]
    usable = bench.usable_rate(max(sizes[-1], 1 << 20))
    rows = []
    for size in sizes:
        for one in benches:
            for method in methods:
                rows.append(one.measure(method, size, runs=arguments.runs))
                _dot(rank)
    packs = [
        bench.measure("none", max(sizes), runs=arguments.runs, bytes_per_pack=pack)
        for pack in map(size_from_text, PACKS)
        if pack <= max(sizes)
    ]
    if rank:
        return 0
    print(file=sys.stderr)
    from rich.console import Console

    arguments.output.mkdir(parents=True, exist_ok=True)
    found = {"replicas": strategy.num_replicas_in_sync, "usable": usable, "rows": rows, "packs": packs}
    (arguments.output / "allreduce.json").write_text(json.dumps(found, indent=1))
    plot(rows, usable, arguments.output / "allreduce.png")
    console = Console(width=120)
    console.print(table([*rows, *packs], usable))
    if usable:
        print(f"usable: {usable / 1e6:.1f} MB/s, a plain TCP stream round {len(addresses)} workers")
    if packs:
        print(f"recommended: bytes_per_pack={recommend(packs)} ({size_as_text(recommend(packs))})")
    return 0


def _algorithms() -> list[str]:
    """Returns the algorithms of one process on this machine."""
    import tensorflow as tf

    within = ["hierarchical_copy", "reduction_to_one_device"]
    return ["nccl", *within] if tf.config.list_physical_devices("GPU") else within


def _dot(rank: int) -> None:
    if not rank:
        print(".", end="", file=sys.stderr, flush=True)
