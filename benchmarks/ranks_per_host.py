"""Counts what each host sends for a sum of float32 if several ranks run on each of several hosts, and its time.

    python benchmarks/ranks_per_host.py --hosts 2 --ranks 2 --rate 1gbit

The hosts are network namespaces, and the bytes are those of their interfaces: the program needs root and iproute2.
tfdist-native adds up within each host first, through shared memory. Without shared memory it takes every rank for a
host of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contenders.sums import runs_of
from namespaces import hosts
from slow_network import one_thread
from transports import DEADLINE_SECONDS

FOLDER = Path(__file__).parent / "contenders"
CONTENDERS = {
    "tfdist-native": ("native_sum.py", "shared,ADDRESS"),
    "tfdist-native without shared memory": ("native_sum.py", "tcp,ADDRESS"),
    "TensorFlow's ring": ("tensorflow_sum.py", "5000,tensorflow,hosts=ADDRESSES"),
}


def measure(name: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """Returns the seconds of a sum, and the most bytes that a host sends for it, divided by the bytes of the array."""
    program, word = CONTENDERS[name]
    with hosts(arguments.hosts, rate=arguments.rate) as machines, tempfile.TemporaryDirectory() as folder:
        places = [machine for machine in machines for _ in range(arguments.ranks)]
        word = word.replace("ADDRESSES", "+".join(place.address for place in places))
        before = [machine.bytes_sent() for machine in machines]
        processes = []
        for rank, place in enumerate(places):
            command = [sys.executable, str(FOLDER / program), str(rank), str(len(places)), folder]
            command += [word.replace("ADDRESS", place.address), str(arguments.size)]
            log = (Path(folder) / f"log-{rank}").open("w")
            processes.append(place.popen(command, env=one_thread(), stdout=log, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + DEADLINE_SECONDS
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.05)
        sent = max(machine.bytes_sent() - start for machine, start in zip(machines, before, strict=True))
        text = (Path(folder) / "log-0").read_text()
    for line in text.splitlines():
        if line.startswith("RESULT "):
            seconds = json.loads(line.removeprefix("RESULT "))[str(arguments.size)]
            return seconds, sent / sum(runs_of(arguments.size)) / arguments.size
    raise RuntimeError(f"expected the time of {name}, received:\n{text[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks on each host (default: %(default)s)")
    parser.add_argument("--rate", help="rate of each link in the notation of tc, such as 1gbit (default: unshaped)")
    parser.add_argument("--size", type=int, default=32 << 20, help="bytes of an array (default: 32 MiB)")
    parser.add_argument("--runs", type=int, default=3, help="number of runs of which the medians are taken")
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.runs):
        for name in CONTENDERS:
            found[name].append(measure(name, arguments))
    least = 2 * (arguments.hosts - 1) / arguments.hosts
    print(f"| {arguments.hosts} hosts with {arguments.ranks} ranks each | ms | bytes sent by a host / of the array |")
    print("| --- | --- | --- |")
    for name, runs in found.items():
        seconds, sent = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"| {name} | {1e3 * seconds:.1f} | {sent:.2f} |")
    print(f"| the least that is possible | | {least:.2f} |")


if __name__ == "__main__":
    main()
