"""Runs a program's first steps in a process of `tfdist verify`: python -m tfdist.verify.program RUN_FILE."""

from __future__ import annotations

import dataclasses
import os
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn

from tfdist.verify.values import PREFIX

SEED = 1

_BUILDERS = (
    "create_strategy",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "central_storage",
    "parameter_server",
    "tpu",
)


def main(path: str) -> None:
    """Runs the program of a run, and writes the record of this process into the folder of the run.

    Args:
        path: file with a pickled Run.
    """
    run = pickle.loads(Path(path).read_bytes())
    import tensorflow as tf

    from tfdist import strategies
    from tfdist.allreduce.options import AllReduceOptions
    from tfdist.verify.loops import LoopRecorder
    from tfdist.verify.on_batch import BatchRecorder
    from tfdist.verify.own_files import keep_snapshots_apart
    from tfdist.verify.precision import compute_in
    from tfdist.verify.recording import Recorder, Verified
    from tfdist.workers import worker_index

    made: list[Any] = []

    def make(
        *args: Any, all_reduce: Any = None, loss: str = "auto", sync_batch_norm: bool = False, **others: Any
    ) -> Any:
        """Takes the place of create_strategy and of the functions for one strategy."""
        if not made:
            topology = run.topology
            options: dict[str, Any] = {"loss": run.experiment.loss or loss}
            options["sync_batch_norm"] = sync_batch_norm or run.experiment.synchronizes
            if topology.strategy != "one_device":
                options["devices"] = topology.devices
                if all_reduce is not None and run.experiment.uncompressed:
                    all_reduce = dataclasses.replace(all_reduce, compression=None)
                options["all_reduce"] = all_reduce if isinstance(all_reduce, AllReduceOptions) else None
            if topology.workers > 1:
                options["startup_timeout_seconds"] = 60
            made.append(create_strategy(topology.strategy, **options))
            made.append(all_reduce)
            on_batch.install()
            in_loop.install(made[0])
        return made[0]

    create_strategy = strategies.create_strategy
    for name in _BUILDERS:
        setattr(strategies, name, make)
    compute_in(run.floatx)
    tf.keras.utils.set_random_seed(SEED)
    replayed = pickle.loads(run.batches.read_bytes()) if run.experiment.replays and run.batches else None
    recorder = Recorder(run, replayed)
    recorder.install()
    keep_snapshots_apart(run.folder / "snapshots")
    on_batch = BatchRecorder(recorder, steps=run.steps, replayed=replayed)
    in_loop = LoopRecorder(recorder, steps=run.steps)
    try:
        execute(run.command)
    except (Verified, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code:
            raise
    on_batch.finish()
    in_loop.finish()
    if not recorder.record.logs:
        refuse(
            "expected the program to train with fit, train_on_batch or strategy.run, received a program without a "
            "training step."
        )
    if not made:
        refuse(
            "expected the program to call tfdist.create_strategy, received a model without it; make the model in the "
            "scope of create_strategy()."
        )
    rank = worker_index(made[0])
    recorder.record.config["all_reduce"] = repr(made[1])
    write(run.folder / f"record-{rank}.pickle", recorder.record)
    if recorder.batches:
        write(run.folder / "batches.pickle", recorder.batches)
    sys.stdout.flush()
    # Collectives of other workers may still be running; the process ends at once, without waiting for threads.
    os._exit(0)


def refuse(sentence: str) -> NoReturn:
    """Ends the process with a sentence that `tfdist verify` shows."""
    print(f"{PREFIX} {sentence}", file=sys.stderr)
    sys.exit(3)


def execute(command: tuple[str, ...]) -> None:
    """Runs a program in this process, as Python would.

    Args:
        command: a path and arguments, or -m, a module and arguments.
    """
    if command[0] == "-m":
        sys.argv = list(command[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        runpy.run_path(command[0], run_name="__main__")


def write(path: Path, value: Any) -> None:
    """Pickles a value under a scratch name and renames it, so that nobody reads half of it."""
    scratch = path.with_name(f".{path.name}")
    scratch.write_bytes(pickle.dumps(value))
    scratch.rename(path)


if __name__ == "__main__":
    main(sys.argv[1])
