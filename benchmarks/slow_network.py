"""Data parallelism over slow links: tfdist, stock TensorFlow, torch DDP and Horovod on real, shaped interfaces.

Every worker is a host of its own, a network namespace joined by veth, whose link `tc tbf` shapes (root, iproute2). A
network of 5.8 million parameters is trained on Fashion-MNIST, from the same weights in the same order by every
contender, one thread a worker. Steps and bytes are measured on each link; accuracy is measured on the unshaped one,
once, since the numbers of training do not depend on the link: time to an accuracy is its steps times the seconds of a
step.

    python benchmarks/slow_network.py --torch PYTHON --horovod PYTHON --write docs/communication.md

PYTHON is the interpreter of an environment that has torch (its CPU wheel), or Horovod 0.28.1 built with Gloo for
TensorFlow 2.15.1. Results that the output folder has already are not measured again. Needs the data set of Debian's
package dataset-fashion-mnist, or what keras.datasets.fashion_mnist.load_data() has downloaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from namespaces import Host, hosts

HERE = Path(__file__).parent
RATES = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "unshaped": None}
DEADLINE_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """Who trains.

    Attributes:
        program: in the folder contenders.
        method: what the program is told.
        python: whose interpreter: "own", "torch", "horovod".
        compressed: whether its accuracy is taken for every number of workers; else for the fewest of them, since the
            numbers are the same but for the rounding of a sum.
    """

    program: str
    method: str
    python: str = "own"
    compressed: bool = False


CONTENDERS = {
    "TensorFlow": Contender(program="keras_worker.py", method="stock"),
    "tfdist": Contender(program="keras_worker.py", method="tfdist"),
    "tfdist, fp16": Contender(program="keras_worker.py", method="tfdist fp16", compressed=True),
    "tfdist, topk:0.01": Contender(program="keras_worker.py", method="tfdist topk:0.01", compressed=True),
    "tfdist, threshold:0.001": Contender(program="keras_worker.py", method="tfdist threshold:0.001", compressed=True),
    "tfdist, powersgd:4": Contender(program="keras_worker.py", method="tfdist powersgd:4", compressed=True),
    "torch DDP": Contender(program="torch_worker.py", method="torch", python="torch"),
    "torch DDP, fp16 hook": Contender(program="torch_worker.py", method="torch fp16", python="torch", compressed=True),
    "torch DDP, PowerSGD hook": Contender(
        program="torch_worker.py", method="torch powersgd:4", python="torch", compressed=True
    ),
    "Horovod": Contender(program="horovod_worker.py", method="horovod", python="horovod"),
    "Horovod, fp16": Contender(program="horovod_worker.py", method="horovod fp16", python="horovod", compressed=True),
}


def run(contender: Contender, python: str, places: list[Host], data: Path, *options: str) -> list[dict[str, float]]:
    """Runs every rank in its place and returns what the first one said; a rank that fails ends all."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank, place in enumerate(places):
            command = [python, str(HERE / "contenders" / contender.program), f"--method={contender.method}"]
            command += [f"--rank={rank}", f"--addresses={','.join(one.address for one in places)}"]
            command += [f"--data={data}", f"--folder={folder}", *options]
            environment = {
                **os.environ,
                "PYTHONPATH": str(HERE.parent),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "CUDA_VISIBLE_DEVICES": "-1",
                "OMP_NUM_THREADS": "1",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "2",
            }
            log = (Path(folder) / f"log-{rank}").open("w")
            ranks.append(place.popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            while any(rank.poll() is None for rank in ranks):
                failed = [rank.returncode for rank in ranks if rank.returncode]
                if failed or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        texts = [(Path(folder) / f"log-{rank}").read_text() for rank in range(len(ranks))]
    if any(rank.returncode for rank in ranks):
        logs = "\n".join(f"==== rank {number}\n{text[-3000:]}" for number, text in enumerate(texts))
        raise RuntimeError(f"expected {contender.method} to end in {DEADLINE_SECONDS:.0f} s without an error:\n{logs}")
    return [json.loads(line.partition("RESULT ")[2]) for line in texts[0].splitlines() if line.startswith("RESULT ")]


class Results:
    """What has been measured, a line of JSON each, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                self.known.update(json.loads(line))

    def add(self, key: str, value: Any) -> None:
        self.known[key] = value
        with self._path.open("a") as file:
            file.write(json.dumps({key: value}) + "\n")
        print(key, value[-1] if isinstance(value, list) else value, flush=True)


def measure(arguments: argparse.Namespace, pythons: dict[str, str], results: Results, data: Path) -> None:
    """Measures what is not known yet."""
    chosen = {name: one for name, one in CONTENDERS.items() if pythons.get(one.python)}
    for workers in arguments.workers:
        for rate in arguments.rate:
            # In turn, so that a change of the machine is a change for all of them.
            for number in range(arguments.runs):
                for name, contender in chosen.items():
                    key = f"{name} | {workers} workers | {rate} | batch {arguments.batch} | run {number}"
                    if key not in results.known:
                        steps = arguments.steps if RATES[rate] != "100mbit" else max(arguments.steps // 5, 5)
                        with hosts(workers, rate=RATES[rate]) as places:
                            options = (f"--batch={arguments.batch}", f"--steps={steps}")
                            results.add(key, run(contender, pythons[contender.python], places, data, *options)[-1])
        for name, contender in chosen.items():
            key = accuracy_key(name, workers, arguments)
            if arguments.epochs and key not in results.known:
                with hosts(workers, rate=None) as places:
                    options = (f"--batch={arguments.batch}", "--steps=0", f"--epochs={arguments.epochs}")
                    results.add(key, run(contender, pythons[contender.python], places, data, *options))


def accuracy_key(name: str, workers: int, arguments: argparse.Namespace) -> str:
    """Returns under which name the accuracies of a contender are kept."""
    workers = workers if CONTENDERS[name].compressed else min(arguments.workers)
    return f"{name} | {workers} workers | accuracy | batch {arguments.batch} | {arguments.epochs} epochs"


def tables(arguments: argparse.Namespace, results: Results) -> str:
    """Returns a table for each number of workers and each link, in Markdown."""
    parts = []
    for workers in arguments.workers:
        for rate in arguments.rate:
            lines = [
                f"{workers} workers, {rate}:",
                "",
                "| | samples/s | ms a step | MB a step | of TensorFlow's bytes | "
                f"s to {arguments.target:.0%} | final accuracy |",
                "| --- | --- | --- | --- | --- | --- | --- |",
            ]
            found = {}
            for name in CONTENDERS:
                runs = [
                    value
                    for key, value in results.known.items()
                    if key.startswith(f"{name} | {workers} workers | {rate} | batch {arguments.batch} | run ")
                ]
                if runs:
                    medians = [statistics.median(run[part] for run in runs) for part in ("seconds", "bytes")]
                    found[name] = (*medians, results.known.get(accuracy_key(name, workers, arguments), []))
            for name, (seconds, size, curve) in found.items():
                reached = next((point["step"] for point in curve if point["accuracy"] >= arguments.target), None)
                against = size / found["TensorFlow"][1] if "TensorFlow" in found else None
                cells = (
                    f"{arguments.batch / seconds:,.0f}",
                    f"{1000 * seconds:.0f}",
                    f"{size / 1e6:.2f}",
                    f"{against:.4f}" if against is not None else "",
                    f"{reached * seconds:,.0f}" if reached else "",
                    f"{curve[-1]['accuracy']:.4f}" if curve else "",
                )
                lines.append(f"| {name} | {' | '.join(cells)} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="interpreter that has torch; without it torch is left out")
    parser.add_argument("--horovod", help="interpreter that has Horovod; without it Horovod is left out")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", nargs="+", choices=tuple(RATES), default=list(RATES))
    parser.add_argument("--batch", type=int, default=256, help="rows a step, of all workers")
    parser.add_argument("--steps", type=int, default=30, help="timed in a run")
    parser.add_argument("--runs", type=int, default=3, help="of which the median is taken, contenders in turn")
    parser.add_argument("--epochs", type=int, default=3, help="of the training for accuracy; 0 for none")
    parser.add_argument("--target", type=float, default=0.86, help="accuracy that time is taken to")
    parser.add_argument("--output", type=Path, default=Path("slow-network"))
    parser.add_argument("--write", type=Path, help="document to put the tables into, between its markers")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(HERE.parent))
    from tfdist.train.data import fashion_mnist_images

    found = fashion_mnist_images()
    data = (arguments.output / "data.npz").resolve()
    flat = {"x": found["train"][0], "y": found["train"][1], "test_x": found["eval"][0], "test_y": found["eval"][1]}
    np.savez(data, **{name: one.reshape(len(one), -1) if name.endswith("x") else one for name, one in flat.items()})
    pythons = {"own": sys.executable, "torch": arguments.torch, "horovod": arguments.horovod}
    results = Results(arguments.output / "results.jsonl")
    measure(arguments, pythons, results, data)
    text = tables(arguments, results)
    print(text)
    if arguments.write:
        before, rest = arguments.write.read_text().split("<!-- tables -->\n")
        after = rest.split("<!-- end of tables -->\n")[1]
        arguments.write.write_text(f"{before}<!-- tables -->\n{text}\n<!-- end of tables -->\n{after}")


if __name__ == "__main__":
    main()
