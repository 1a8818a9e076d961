"""Runs `tfdist bench allreduce` on hosts of their own, network namespaces whose links are shaped (root, iproute2).

    python benchmarks/slow_allreduce.py --workers 2 --rate 1gbit -- --size 32M

What comes behind -- is for `tfdist bench allreduce`.
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
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", help="of each link as tc writes it, such as 100mbit; unshaped if left out")
    parser.add_argument("rest", nargs="*", help="for tfdist bench allreduce")
    arguments = parser.parse_args()
    with hosts(arguments.workers, rate=arguments.rate) as places:
        addresses = [f"{place.address}:5000" for place in places]
        ranks = []
        for index, place in enumerate(places):
            environment = {
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parent.parent),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}),
            }
            command = [sys.executable, "-m", "tfdist", "bench", "allreduce", *arguments.rest]
            ranks.append(place.popen(command, env=environment, stderr=None if not index else subprocess.DEVNULL))
        try:
            return ranks[0].wait(3600)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


if __name__ == "__main__":
    sys.exit(main())
