"""Runs public programs that make their own strategies, with `--adopt` and on one device, and compares the numbers.

    python -m tests.adoption.public FOLDER [--write docs/adopt.md]

FOLDER has copies of the programs, under the names in PROGRAMS; this project contains none of them. The programs run as
they are. A `sitecustomize.py` beside this file replaces the data, sets float64 and a seed, and reports the history and
the weights of each `fit`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.compare import error_of
from tests.generated import between_marks
from tests.processes import run

HERE = Path(__file__).parent
DEADLINE_SECONDS = 600.0
BOUND = 1e-10

# What a call of `tfdist.adopt(sync_batch_norm=True)` needs: a program whose model has batch normalization has the
# statistics of each replica without it, as with `create_strategy`.
SYNC = "import runpy, sys, tfdist; tfdist.adopt(sync_batch_norm=True); runpy.run_path(sys.argv[1], run_name='__main__')"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A public program.

    Attributes:
        source: the repository and the file it is from.
        file: its name in the folder.
        workers: the number of its workers; 1 for a program of one process with two replicas.
        call: a function of the file that starts it; empty if the file starts itself.
        sync: whether its model has batch normalization.
        rows: rows of training data.
        env: further environment variables.
        leftovers: folders outside of its own that it makes, and that an earlier run has left.
    """

    source: str
    file: str
    workers: int = 1
    call: str = ""
    sync: bool = False
    rows: int = 1000
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    leftovers: tuple[str, ...] = ()

    def command(self, folder: Path, *, adopts: bool) -> list[str]:
        """Returns what starts it."""
        path = str(folder / self.file)
        if self.call:
            return [sys.executable, "-c", f"from {Path(self.file).stem} import {self.call}; {self.call}()"]
        return [sys.executable, "-c", SYNC, path] if self.sync and adopts else [sys.executable, path]


PROGRAMS = (
    Program(
        source="keras-team/keras, integration_tests/tf_distribute_training_test.py",
        file="tf_distribute_training_test.py",
        sync=True,
    ),
    Program(
        source="keras-team/keras-io, guides/distributed_training_with_tensorflow.py",
        file="distributed_training_with_tensorflow.py",
        rows=11000,
        env={"PUBLIC_CPUS": "2"},
    ),
    Program(source="tensorflow/docs, tutorials/distribute/multi_worker_with_keras.ipynb", file="main.py", workers=2),
    Program(
        source="ray-project/ray, python/ray/train/examples/tf/tensorflow_quick_start.py",
        file="tensorflow_quick_start.py",
        workers=2,
        call="train_func_distributed",
    ),
    Program(
        source="tensorflow/ecosystem, distribution_strategy/multi_worker_mirrored_strategy/examples/keras_mnist.py",
        file="keras_mnist.py",
        workers=2,
        env={"TF_USE_LEGACY_KERAS": "1"},
        leftovers=("/pvcmnt", "/tmp/workertemp_0", "/tmp/workertemp_1"),
    ),
)


def fits(program: Program, folder: Path, *, adopts: bool) -> list[list[dict]]:
    """Runs a program, and returns what each of its tasks reports of each fit."""
    paths = (HERE / "stand_in", folder, HERE.parents[2])
    env = {
        **program.env,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PUBLIC_ROWS": str(program.rows),
        # Any such variable makes tests.processes start a new interpreter, which reads sitecustomize.py.
        "PYTHONNOUSERSITE": "1",
    }
    command = program.command(folder, adopts=adopts)
    if adopts:
        workers = ["--workers", str(program.workers)] if program.workers > 1 else []
        asked = [] if program.sync else ["--adopt"]
        command = [sys.executable, "-m", "tfdist", "launch", *workers, *asked, "--show", "all", "--", *command]
    else:
        # The programs of several workers read the number of workers from TF_CONFIG, for their global batch.
        cluster = {"worker": [f"localhost:{port}" for port in range(1, program.workers + 1)]}
        env |= {"PUBLIC_ONE_DEVICE": "1"}
        env |= {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}
        env.pop("PUBLIC_CPUS", None)
    for leftover in program.leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        ended = run(command, cwd=Path(scratch), env=env, deadline_seconds=DEADLINE_SECONDS)
    if ended.code:
        raise RuntimeError(f"expected {program.file} to end with 0, but it ended with {ended.code}:\n{ended.text}")
    if adopts and "adopted " not in ended.text:
        raise RuntimeError(f"expected tfdist to adopt the strategy of {program.file}, received:\n{ended.text}")
    tasks: dict[str, list[dict]] = {}
    for line in ended.text.splitlines():
        task, found, text = line.partition("PUBLIC ")
        if found:
            tasks.setdefault(task, []).append(json.loads(text))
    return list(tasks.values())


def row(program: Program, folder: Path) -> str:
    """Returns the row of a program: its source, its topology, its fits, and the largest relative difference."""
    (expected,) = fits(program, folder, adopts=False)
    tasks = fits(program, folder, adopts=True)
    if len(tasks) != program.workers or not expected:
        raise RuntimeError(f"expected fits of {program.workers} tasks of {program.file}, received {len(tasks)}")
    error = max(error_of(task, expected)[0] for task in tasks)
    where = "two workers" if program.workers > 1 else "two replicas"
    how = "`tfdist.adopt(sync_batch_norm=True)`" if program.sync else "`--adopt`"
    verdict = f"{error:.0e}" if error <= BOUND else f"**{error:.0e}**"
    return f"| {program.source} | {how}, {where} | {len(expected)} | {verdict} |"


def table(folder: Path) -> str:
    """Returns the table of all programs."""
    head = "| program | adopted by | fits | largest relative difference from one device |\n| --- | --- | --- | --- |"
    return "\n".join([head, *(row(program, folder) for program in PROGRAMS)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.adoption.public", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the programs are")
    parser.add_argument("--write", type=Path, help="document to write; without this option the table is printed")
    arguments = parser.parse_args()
    text = table(arguments.folder.resolve())
    if arguments.write is None:
        print(text)
    else:
        arguments.write.write_text(between_marks(arguments.write.read_text(), "public programs", text))


if __name__ == "__main__":
    main()
