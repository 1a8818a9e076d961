"""Compares settings of TensorFlow's gRPC for sums of float32 over the ranks of one machine.

    python benchmarks/grpc_settings.py --runs 5

All settings take turns in each run; the figures are medians of the runs' medians. One thread computes in each rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from transports import Contender, seconds, table

SIZE = 64 << 20
SETTINGS = (
    "",
    "recv_buf_max_chunk=-1",
    "recv_buf_max_chunk=65536",
    "num_channels_per_target=4",
    "num_channels_per_target=4,recv_buf_max_chunk=-1",
    "max_subdivs_per_device=8",
    "TF_GRPC_WORKER_CACHE_QUEUES=4",
    "TF_GRPC_WORKER_CACHE_THREADS=4",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks (default: %(default)s)")
    parser.add_argument("--size", type=int, action="append", help="bytes of an array; may be repeated")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of which the medians are taken")
    parser.add_argument("--setting", action="append", help="NAME=VALUE,...; may be repeated (default: a list of them)")
    arguments = parser.parse_args()
    settings = arguments.setting or list(SETTINGS)
    found: dict[str, list[dict[str, float]]] = {setting: [] for setting in settings}
    for _ in range(arguments.runs):
        for setting in settings:
            word = ",".join(["PORT", "tensorflow", *([setting] if setting else [])])
            contender = Contender("tensorflow_sum.py", "own", word)
            found[setting].append(seconds(contender, sys.executable, arguments.ranks, arguments.size or [SIZE]))
    medians = {
        setting or "defaults": {size: statistics.median(run[size] for run in runs) for size in runs[0]}
        for setting, runs in found.items()
    }
    print(table(arguments.ranks, medians))


if __name__ == "__main__":
    main()
