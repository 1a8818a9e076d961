"""Compares sums of float32 over the ranks of a machine: tfdist-native, TensorFlow, Gloo (torch, Horovod), UCX (MPI).

    pip install '.[cpu,native]'
    python benchmarks/transports.py --torch PYTHON --horovod PYTHON --mpi PYTHON

PYTHON is the interpreter of an environment with torch, with Horovod 0.28.1 built with Gloo for TensorFlow 2.15.1, or
with mpi4py built for an Open MPI that has UCX, whose mpiexec is in the path.
All contenders take turns in each run; the figures are medians of the runs' medians. One thread computes in each rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slow_network import one_thread

FOLDER = Path(__file__).parent
SIZES = (1 << 10, 16 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20)
DEADLINE_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class Contender:
    """A program in the folder contenders.

    Attributes:
        program: its file.
        python: which interpreter runs it: "own", "torch", "horovod" or "mpi".
        word: what it gets after the folder; PORT stands for a free port. The transports of UCX for a program of MPI.
    """

    program: str
    python: str
    word: str


CONTENDERS = {
    "tfdist-native, shared memory": Contender("native_sum.py", "own", "shared"),
    "tfdist-native, TCP": Contender("native_sum.py", "own", "tcp"),
    "tfdist-native in a tf.function, shared memory": Contender("tensorflow_sum.py", "own", "PORT,native"),
    "TensorFlow's ring in a tf.function": Contender("tensorflow_sum.py", "own", "PORT,tensorflow"),
    "torch.distributed, Gloo": Contender("torch_sum.py", "torch", "PORT"),
    "Horovod, Gloo, in a tf.function": Contender("horovod_sum.py", "horovod", "PORT"),
    "Open MPI, UCX, shared memory": Contender("mpi_sum.py", "mpi", "posix,cma,self"),
    "Open MPI, UCX, TCP": Contender("mpi_sum.py", "mpi", "tcp,self"),
}


def seconds(contender: Contender, python: str, ranks: int, sizes: list[int], *, of: str = "times") -> dict[str, float]:
    """Returns the time of a sum of each size.

    Args:
        contender: what to measure.
        python: its interpreter.
        ranks: the number of ranks.
        sizes: bytes of the arrays.
        of: "times", or "busiest" for the processor time of the thread of rank 0 that has most of it.

    Raises:
        RuntimeError: if a rank fails, or does not end in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for number, command in enumerate(commands(contender, python, ranks, folder)):
            log = (Path(folder) / f"log-{number}").open("w")
            command = [*command, *map(str, sizes)]
            processes.append(subprocess.Popen(command, env=one_thread(), stdout=log, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                if any(process.returncode for process in processes):
                    break
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        text = (Path(folder) / "log-0").read_text()
    for line in text.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))[of]
    raise RuntimeError(f"expected the times of {contender.program}, received:\n{text[-3000:]}")


def commands(contender: Contender, python: str, ranks: int, folder: str) -> list[list[str]]:
    """Returns the commands of the processes to start: one for each rank, or mpiexec, which starts them all."""
    program = str(FOLDER / "contenders" / contender.program)
    if contender.python == "mpi":
        # Open MPI takes UCX only for devices with RDMA, if it is not told to take it for any.
        any_device = [word for name in ("tls", "devices") for word in ("--mca", f"pml_ucx_{name}", "any")]
        options = ["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ucx", *any_device]
        options += ["-x", f"UCX_TLS={contender.word}"]
        return [["mpiexec", "-n", str(ranks), *options, python, program]]
    word = contender.word.replace("PORT", str(free_ports(ranks)))
    return [[python, program, str(rank), str(ranks), folder, word] for rank in range(ranks)]


def free_ports(count: int) -> int:
    """Returns the first of several ports in a row that are free now."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
        try:
            for number in range(count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port + number))
        except (OSError, OverflowError):
            continue
        return port


def table(ranks: int, medians: dict[str, dict[str, float]], *, unit: str = "microseconds") -> str:
    """Returns the table of a number of ranks: the time of each size, and GB/s of the largest."""
    sizes = list(next(iter(medians.values())))
    heads = [f"{int(size) >> 10} KiB" if int(size) < 1 << 20 else f"{int(size) >> 20} MiB" for size in sizes]
    lines = [f"| {ranks} ranks, {unit} | {' | '.join(heads)} | GB/s of the largest |"]
    lines += ["| --- |" + " --- |" * (len(sizes) + 1)]
    for name, times in medians.items():
        cells = [f"{1e6 * times[size]:,.0f}" for size in sizes]
        lines.append(f"| {name} | {' | '.join(cells)} | {int(sizes[-1]) / times[sizes[-1]] / 1e9:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="interpreter with torch; without this option torch is not measured")
    parser.add_argument("--horovod", help="interpreter with Horovod; without this option Horovod is not measured")
    parser.add_argument("--mpi", help="interpreter with mpi4py; without this option MPI is not measured")
    parser.add_argument("--ranks", type=int, action="append", help="number of ranks; may be repeated (default: 2, 4)")
    parser.add_argument("--size", type=int, action="append", help="bytes of an array; may be repeated")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of which the medians are taken")
    parser.add_argument("--only", help="part of the names of the contenders")
    parser.add_argument(
        "--busiest",
        action="store_true",
        help="show the processor time of the thread of rank 0 that has most of it: with a core for each thread, a sum "
        "cannot take less",
    )
    arguments = parser.parse_args()
    pythons = {"own": sys.executable, "torch": arguments.torch, "horovod": arguments.horovod}
    pythons["mpi"] = arguments.mpi
    contenders = {
        name: one for name, one in CONTENDERS.items() if pythons[one.python] and (arguments.only or "") in name
    }
    for ranks in arguments.ranks or [2, 4]:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for _ in range(arguments.runs):
            for name, contender in contenders.items():
                sizes, of = arguments.size or list(SIZES), "busiest" if arguments.busiest else "times"
                found[name].append(seconds(contender, pythons[contender.python] or "", ranks, sizes, of=of))
        medians = {
            name: {size: statistics.median(run[size] for run in runs) for size in runs[0]}
            for name, runs in found.items()
        }
        unit = "microseconds of the busiest thread" if arguments.busiest else "microseconds"
        print(table(ranks, medians, unit=unit), flush=True)


if __name__ == "__main__":
    main()
