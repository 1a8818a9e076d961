"""`tfdist bench allreduce`: time, bandwidth and bytes of summing gradients over the replicas of a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist._suggestions import Parser
from tfdist.allreduce.compression import COMPRESSIONS, compression_from_name
from tfdist.allreduce.options import ALGORITHMS, TRANSPORTS, AllReduceOptions
from tfdist.bench.allreduce_report import Results, report
from tfdist.bench.extra import require
from tfdist.bench.results_folder import make_results_folder
from tfdist.bench.sizes import size_from_text

if TYPE_CHECKING:
    from tfdist.bench.allreduce_measure import Bench
    from tfdist.cluster import ClusterConfig

SIZES = ("1K", "16K", "256K", "1M", "8M", "32M", "256M")
PACKS = ("512K", "1M", "2M", "4M", "8M", "16M")
# The gradients are drawn with a standard deviation of 1, so that a tau of 2.5 sends one element in eighty.
METHODS = ("tensorflow", "none", "fp16", "bf16", "topk:0.01", "threshold:2.5", "powersgd:4")
_SMALLEST_TCP_BYTES = 1 << 20


def main(argv: list[str]) -> int:
    """Runs the command and returns the exit code; in a cluster, every worker calls this function.

    Args:
        argv: command-line arguments after `tfdist bench allreduce`.
    """
    options = parser()
    arguments = _parse(options, argv)
    require(options, "matplotlib", "psutil")
    benches = _make_benches(options, arguments)
    if benches[0].worker == 0:
        make_results_folder(options, arguments.output)
    results = _measure(benches, arguments)
    if benches[0].worker == 0:
        report(results, arguments.output)
    return 0


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    result = Parser(
        prog="tfdist bench allreduce",
        description=f"{__doc__} Start it in every worker, for example with `tfdist launch --workers 2 -m tfdist bench "
        "allreduce`; without a cluster, the benchmark sums over the --devices of one process. busbw is size / time * "
        "2(n-1)/n, as nccl-tests define it; busbw / TCP compares busbw with plain TCP streams in a ring of workers.",
    )
    result.add_argument(
        "--size", action="append", type=size_from_text, help="bytes of float32 to sum, such as 32M; may be repeated"
    )
    result.add_argument(
        "--method",
        action="append",
        help="tensorflow (its own sum), none (tfdist's sum without compression), or a compression out of "
        f"{', '.join(name for name in COMPRESSIONS if name != 'none')}; may be repeated",
    )
    result.add_argument(
        "--algorithm",
        action="append",
        choices=ALGORITHMS,
        help="all-reduce algorithm of the strategy; in one process it may be repeated (default: auto across workers, "
        "in one process every algorithm that this machine can run, and with the transport native auto)",
    )
    result.add_argument(
        "--transport",
        action="append",
        choices=TRANSPORTS,
        help="what carries the sums; may be repeated. auto measures tensorflow, and also native where all workers have "
        "it (default: auto)",
    )
    result.add_argument("--devices", type=int, default=2, help="number of devices in one process (default: 2)")
    result.add_argument("--runs", type=int, default=5, help="number of runs of which the median is taken (default: 5)")
    result.add_argument(
        "--output",
        type=Path,
        default=Path("bench-allreduce"),
        help="folder for allreduce.json and allreduce.png (default: %(default)s)",
    )
    return result


def _parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    arguments = parser.parse_args(argv)
    arguments.method = arguments.method or list(METHODS)
    arguments.transport = list(dict.fromkeys(arguments.transport or ["auto"]))
    arguments.size = arguments.size or [size_from_text(size) for size in SIZES]
    try:
        for method in arguments.method:
            if method != "tensorflow":
                compression_from_name(method)
    except ValueError as error:
        parser.error(str(error))
    if arguments.runs < 1:
        parser.error(f"expected --runs to be at least 1, received {arguments.runs}.")
    return arguments


def _make_benches(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[Bench]:
    """Returns a Bench for each algorithm and transport."""
    from tfdist.cluster import ClusterConfig

    cluster = ClusterConfig.detect()
    try:
        if not cluster.is_distributed:
            return list(_benches_of_one_process(arguments))
        if len(arguments.algorithm or []) > 1:
            parser.error(f"expected one --algorithm across workers, received {', '.join(arguments.algorithm)}.")
        return list(_benches_of_cluster(cluster, arguments))
    except (ValueError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _benches_of_one_process(arguments: argparse.Namespace) -> Iterator[Bench]:
    """Yields the benches, each with a strategy of its own."""
    from tfdist.allreduce.streams import communicators_of
    from tfdist.bench.allreduce_measure import Bench
    from tfdist.strategies import create_strategy

    measured = set()
    for transport in arguments.transport:
        for algorithm in arguments.algorithm or _algorithms_of_one_process(transport):
            options = AllReduceOptions(algorithm=algorithm, transport=transport)
            strategy = create_strategy("mirrored", devices=arguments.devices, all_reduce=options)
            used = "native" if communicators_of(strategy) else "tensorflow"
            if used == "tensorflow" and transport == "native":
                raise ValueError(
                    "expected several replicas for --transport native, received one; give --devices=2 or more."
                )
            if used == "tensorflow" and algorithm == "auto" and not arguments.algorithm:
                # Without the native transport, the strategy takes one of the algorithms that are measured anyway.
                continue
            if (algorithm, used) not in measured:
                measured.add((algorithm, used))
                yield Bench(strategy, algorithm=algorithm, transport=used, addresses=[])


def _benches_of_cluster(cluster: ClusterConfig, arguments: argparse.Namespace) -> Iterator[Bench]:
    """Yields a bench for each transport; all of them have the same strategy, since a process can have only one."""
    from tfdist.allreduce.streams import communicators_of
    from tfdist.bench.allreduce_measure import Bench
    from tfdist.cluster.tasks import CHIEF_JOBS
    from tfdist.strategies import create_strategy

    (algorithm,) = arguments.algorithm or ["auto"]
    asked = next(name for name in ("native", "auto", "tensorflow") if name in arguments.transport)
    options = AllReduceOptions(algorithm=algorithm, transport=asked)
    strategy = create_strategy("multi_worker_mirrored", cluster=cluster, all_reduce=options)
    if asked == "native" and not communicators_of(strategy):
        raise ValueError("expected several replicas for --transport native, received one; start more workers.")
    addresses = [address for job in (*CHIEF_JOBS, "worker") for address in cluster.jobs.get(job, ())]
    for transport in ("tensorflow", "native"):
        is_asked = transport in arguments.transport or "auto" in arguments.transport
        if is_asked and (transport == "tensorflow" or communicators_of(strategy)):
            yield Bench(strategy, algorithm=algorithm, transport=transport, addresses=addresses)


def _algorithms_of_one_process(transport: str) -> list[str]:
    """Returns the algorithms that this machine can run in one process; the native transport is "auto"."""
    import tensorflow as tf

    if transport == "native":
        return ["auto"]
    algorithms = ["hierarchical_copy", "reduction_to_one_device", *(["auto"] if transport == "auto" else [])]
    return ["nccl", *algorithms] if tf.config.list_physical_devices("GPU") else algorithms


def _measure(benches: list[Bench], arguments: argparse.Namespace) -> Results:
    """Measures every size with every bench and method, then the largest size in packs with every transport."""
    first, largest = benches[0], max(arguments.size)
    shows_progress = first.worker == 0
    usable = first.tcp_rate(max(arguments.size[-1], _SMALLEST_TCP_BYTES))
    rows = []
    for size in arguments.size:
        for bench in benches:
            for method in arguments.method:
                rows.append(bench.measure(method, size, runs=arguments.runs))
                if shows_progress:
                    print(".", end="", file=sys.stderr, flush=True)
    of_transports = {bench.transport: bench for bench in reversed(benches)}
    packs = [
        bench.measure("none", largest, runs=arguments.runs, bytes_per_pack=pack)
        for pack in map(size_from_text, PACKS)
        if pack <= largest
        for bench in reversed(of_transports.values())
    ]
    if shows_progress:
        print(file=sys.stderr)
    return Results(replicas=first.replicas, usable=usable, rows=rows, packs=packs)
