"""Runs `tfdist bench allreduce` with workers in network namespaces, whose links have a limited rate.

    python benchmarks/slow_allreduce.py --workers 2 --rate 1gbit -- --size 32M

The options after -- are passed to `tfdist bench allreduce`. The program needs root and iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from namespaces import hosts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="number of workers (default: 2)")
    parser.add_argument("--rate", help="rate of each link in the notation of tc, such as 100mbit (default: unshaped)")
    parser.add_argument("rest", nargs="*", help="options of tfdist bench allreduce")
    arguments = parser.parse_args()
    with hosts(arguments.workers, rate=arguments.rate) as machines:
        addresses = [f"{machine.address}:5000" for machine in machines]
        workers = []
        for index, machine in enumerate(machines):
            environment = {
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parent.parent),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}),
            }
            command = [sys.executable, "-m", "tfdist", "bench", "allreduce", *arguments.rest]
            workers.append(machine.popen(command, env=environment, stderr=None if not index else subprocess.DEVNULL))
        try:
            return workers[0].wait(3600)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


if __name__ == "__main__":
    sys.exit(main())
