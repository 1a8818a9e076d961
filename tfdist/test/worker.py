"""A worker of `tfdist test`: python -m tfdist.test.worker STAGE FOLDER WORKERS SECONDS.

The stage "checks" runs all checks, and ends in the middle of the training of which one worker is killed. The stage
"resume" goes on with this training.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.test import checks
from tfdist.test.checks import BOUND, Outcome, Record
from tfdist.test.one_device import FILE
from tfdist.test.parent import end_with_parent

STAGES = ("checks", "resume")
# A sum or a batch that takes longer is given up: the checks train networks of a hundred weights.
_WAIT_SECONDS = 30.0
_ELEMENTS = 1 << 17
_SUMS = 5


def record_of(folder: Path, stage: str) -> Record:
    """Returns the record of a stage.

    Args:
        folder: folder of this task.
        stage: one of STAGES.
    """
    return Record(folder / f"record-{stage}")


def main(stage: str, folder: str, workers: str, seconds: str) -> None:
    """Runs the checks of a stage, and records how each of them ends.

    Args:
        stage: one of STAGES.
        folder: folder of this task.
        workers: number of workers that the cluster should have.
        seconds: how long the other workers may take to come.
    """
    end_with_parent()
    worker = _Worker(Path(folder), stage, workers=int(workers))
    try:
        worker.start(float(seconds))
        if stage == "checks":
            worker.run_checks()
        else:
            worker.resume()
        code = 0
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of TensorFlow may still wait for other workers.
    os._exit(code)


class _Worker:
    """Runs the checks on this worker.

    Args:
        folder: folder of this task.
        stage: one of STAGES.
        workers: number of workers that the cluster should have.
    """

    def __init__(self, folder: Path, stage: str, *, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._record = record_of(folder, stage)
        self._stage = stage

    def start(self, seconds: float) -> None:
        """Imports TensorFlow and waits for the other workers."""
        begun = time.monotonic()
        self._record.begin(checks.RESUME if self._stage == "resume" else checks.START)
        from tfdist import AllReduceOptions, create_strategy
        from tfdist.keras_compat import keras_in_use
        from tfdist.test.programs import use_float64
        from tfdist.workers import count_workers

        use_float64()
        self._strategy = create_strategy(
            "multi_worker_mirrored",
            all_reduce=AllReduceOptions(timeout_seconds=_WAIT_SECONDS),
            startup_timeout_seconds=seconds,
            sync_batch_norm=True,
        )
        if self._stage == "resume":
            return
        found = count_workers(self._strategy)
        replicas = self._strategy.num_replicas_in_sync
        device = self._strategy.extended.worker_devices[0].rpartition("device:")[2].partition(":")[0]
        keras = keras_in_use()
        name = "tf_keras" if keras.name == "tf_keras" else "Keras"
        text = f"{found} workers, {replicas} replicas on {device}, {name} {keras.version}"
        self._end(checks.START, found == self._workers, text, begun)

    def run_checks(self) -> None:
        """Runs the checks, and the training that ends with a kill."""
        self._run(checks.ALL_REDUCE, self._all_reduce)
        expected = json.loads((self._folder / FILE).read_text())
        for check in checks.COMPARED:
            self._run(check, lambda check=check: self._compared(check, expected[check]))  # type: ignore[misc]
        self._run(checks.SAVING, self._saved)
        from tfdist.test.resuming import train_until_killed

        self._record.begin(checks.RESUME)
        train_until_killed(self._strategy, self._folder)

    def resume(self) -> None:
        """Goes on with the training that was killed."""
        from tfdist.test.resuming import EVERY_STEPS, KILLED_AFTER, train_on

        begun = time.monotonic()
        first, is_same = train_on(self._strategy, self._folder)
        rows = self._exchange([first, int(is_same)], to="end the training")
        steps = {int(row[0]) for row in rows}
        others = [worker for worker, row in enumerate(rows) if not row[1]]
        kept = KILLED_AFTER // EVERY_STEPS * EVERY_STEPS
        text = f"worker {len(rows) - 1} was killed after step {KILLED_AFTER}"
        if steps != {kept + 1}:
            self._end(
                checks.RESUME, False, f"{text}; the training went on with step {min(steps)}, not {kept + 1}", begun
            )
        elif others:
            self._end(checks.RESUME, False, f"{text}; {_named(others)} ended with other bits", begun)
        else:
            self._end(checks.RESUME, True, f"{text}; went on with step {kept + 1}, ended with the same bits", begun)

    def _run(self, check: str, action: Callable[[], tuple[bool, str]]) -> None:
        begun = time.monotonic()
        self._record.begin(check)
        is_right, text = action()
        self._end(check, is_right, text, begun)

    def _end(self, check: str, is_right: bool, text: str, begun: float) -> None:
        verdict = "pass" if is_right else "fail"
        self._record.end(Outcome(check=check, verdict=verdict, text=text, seconds=time.monotonic() - begun))

    def _exchange(self, numbers: list[float], *, to: str) -> list[tuple[float, ...]]:
        from tfdist.workers import exchange

        return exchange(self._strategy, numbers, dtype="float64", to=to)

    def _all_reduce(self) -> tuple[bool, str]:
        import numpy as np

        from tfdist.workers import sum_over_workers, worker_index

        # Whole numbers, whose sums are exact in any order.
        numbers = np.arange(_ELEMENTS, dtype="float64")
        seconds, is_right = [], True
        for _ in range(_SUMS):
            begun = time.monotonic()
            total = sum_over_workers(self._strategy, numbers * (worker_index(self._strategy) + 1))
            seconds.append(time.monotonic() - begun)
            is_right &= bool((total == numbers * (self._workers * (self._workers + 1) // 2)).all())
        rows = self._exchange([int(is_right)], to="sum")
        wrong = [worker for worker, row in enumerate(rows) if not row[0]]
        if wrong:
            return False, f"wrong sums on {_named(wrong)}"
        return True, f"{numbers.nbytes >> 20} MiB of float64 in {sorted(seconds)[_SUMS // 2] * 1e3:.1f} ms, exact"

    def _compared(self, check: str, expected: dict[str, Any]) -> tuple[bool, str]:
        from tfdist.test.programs import PROGRAMS
        from tfdist.verify.compare import error_of

        own = PROGRAMS[check](self._strategy, self._workers)
        names = list(expected)
        errors = [error_of(own[name], expected[name]) if name in own else float("inf") for name in names]
        worst = max(range(len(names)), key=errors.__getitem__)
        return judged(self._exchange([errors[worst], worst], to="compare"), names)

    def _saved(self) -> tuple[bool, str]:
        import tensorflow as tf

        from tfdist.saving import save_model
        from tfdist.test.programs import data, loss_of, model_of
        from tfdist.verify.compare import error_of

        x, y, size = data(self._workers, batches=1)
        with self._strategy.scope():
            model = model_of(normalizes=True)
            model.compile(tf.keras.optimizers.Adam(0.01), loss_of())
        model.fit(x, y, batch_size=size, shuffle=False, verbose=0)
        path = str(self._folder / "model.keras")
        save_model(model, path)
        predicted = model.predict(x, batch_size=size, verbose=0)
        loaded = tf.keras.models.load_model(path)
        error = error_of(loaded.predict(x, batch_size=size, verbose=0), predicted)
        return judged(self._exchange([error, 0], to="load the model"), ["the prediction"])


def judged(rows: list[tuple[float, ...]], names: list[str]) -> tuple[bool, str]:
    """Returns whether all workers have the expected numbers, and the largest difference in words.

    Args:
        rows: the largest relative difference of each worker, and the index of the name that has it.
        names: the names of the numbers.

    Example:
        >>> judged([(0.0, 0), (2e-16, 1)], ["loss", "kernel"])
        (True, 'largest relative difference 2.0e-16')
        >>> judged([(0.0, 0), (0.25, 1)], ["loss", "kernel"])
        (False, 'kernel differs by 2.5e-01 on worker 1')
    """
    wrong = [worker for worker, row in enumerate(rows) if not row[0] <= BOUND]
    if not wrong:
        return True, f"largest relative difference {max(row[0] for row in rows):.1e}"
    size, index = max(rows[worker] for worker in wrong)
    return False, f"{names[int(index)]} differs by {size:.1e} on {_named(wrong)}"


def _named(workers: list[int]) -> str:
    return ", ".join(f"worker {worker}" for worker in workers)


if __name__ == "__main__":
    main(*sys.argv[1:])
