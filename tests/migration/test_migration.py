"""Programs that were migrated by the guides change in few lines, and train what one device trains."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.migration.changes import MOST_CHANGED, PROGRAMS, changes, of_program
from tests.migration.pages import PROGRAM_OF
from tests.processes import ROOT, Finished, launch, run

SEEDED = ("-m", "tests.migration.seeded")
DEADLINE_SECONDS = 240.0

# How a program becomes one of stock Keras on one device, which trains with the batches of two workers.
ONE_DEVICE = {
    "horovod": {
        "strategy.num_replicas_in_sync": "2",
        "tfdist.create_strategy().scope()": "tf.distribute.get_strategy().scope()",
    },
    "tf_distribute": {
        'tfdist.create_strategy(all_reduce=tfdist.AllReduceOptions(algorithm="ring"))': "tf.distribute.get_strategy()",
        "tfdist.workers.count_workers(strategy)": "2",
    },
}
SAVED = {"horovod": [f"checkpoint-{epoch}.keras" for epoch in (1, 2, 3, 4)], "tf_distribute": ["digits.keras"]}


def losses(finished: Finished) -> list[str]:
    """Returns the loss of each epoch, as the program prints it."""
    assert finished.code == 0
    return re.findall(r"loss: (\S+)", finished.text)


def weights(path: Path) -> list[np.ndarray]:
    """Returns the weights of a saved model."""
    import tensorflow as tf

    return tf.keras.models.load_model(path, compile=False).get_weights()


def run_seeded(program: Path, folder: Path) -> Finished:
    """Runs a program with a seed, in float64, in a new folder."""
    folder.mkdir()
    return run([sys.executable, *SEEDED, str(program)], cwd=folder, deadline_seconds=DEADLINE_SECONDS)


def test_lines_of_the_new_version_are_counted_but_not_empty_ones() -> None:
    found = changes("a\nb\n\nc\n", "a\n# new\n\n\nd\n  c\n")
    assert (found.changed, found.removed) == (3, 2)


@pytest.mark.parametrize("name", PROGRAM_OF.values())
def test_at_most_ten_lines_change(name: str) -> None:
    assert 0 < of_program(name).changed <= MOST_CHANGED


@pytest.mark.parametrize("name", ONE_DEVICE)
def test_two_workers_train_what_one_device_trains(name: str, tmp_path: Path) -> None:
    program = PROGRAMS / name / "after.py"
    text = program.read_text()
    for old, new in ONE_DEVICE[name].items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "two").mkdir()

    alone = run_seeded(tmp_path / "program.py", tmp_path / "one")
    words = ("--workers", "2", "--", *SEEDED, str(program))
    both = launch(*words, cwd=tmp_path / "two", deadline_seconds=DEADLINE_SECONDS)

    assert losses(both) == losses(alone) != []
    assert float(losses(both)[-1]) < 0.6 * float(losses(both)[0])
    for file in SAVED[name]:
        expected, received = (weights(tmp_path / folder / file) for folder in ("one", "two"))
        for one, two in zip(expected, received, strict=True):
            assert np.abs(one - two).max() <= 1e-9 * np.abs(one).max()
    if name == "tf_distribute":
        rows = re.findall(r"^\| (?:one device|after.py, tfdist) \| .*$", page("from_tf_distribute.md"), re.M)
        assert len(rows) == 2
        assert all(losses(both)[-1] in row for row in rows)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_warmup_has_the_rates_of_horovods_callback() -> None:
    from tfdist.optimizers import LinearWarmup

    rate, size, epochs, steps = 0.3, 4, 3, 7
    warmup = LinearWarmup(rate, epochs * steps, start=1 / size)
    for step in range(epochs * steps):
        # Horovod's callback computes this rate from the fraction of the epoch at the end of the step.
        epoch = (step + 1) / steps
        assert float(warmup(step)) == pytest.approx(rate / size * (epoch * (size - 1) / epochs + 1), rel=1e-6)


def test_two_workers_and_a_parameter_server_lose_no_count(tmp_path: Path) -> None:
    program = str(PROGRAMS / "tf_distribute" / "counts.py")
    words = ("--workers", "2", "--ps", "1", "--", program, "tfdist")
    finished = launch(*words, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert finished.code == 0
    assert "200 of 200 steps, 1600 of 1600 rows, accuracy 1.0000" in finished.text


def test_the_program_with_lamb_trains(tmp_path: Path) -> None:
    finished = run_seeded(PROGRAMS / "addons" / "after.py", tmp_path / "after")
    assert float(losses(finished)[-1]) < 0.5 * float(losses(finished)[0])
    assert (tmp_path / "after" / "digits.keras").exists()
