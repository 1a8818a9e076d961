"""Programs that were migrated by the guides change in few lines, and train what one device trains."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.migration import pages
from tests.migration.changes import MOST_CHANGED, PROGRAMS, of_program
from tests.processes import Finished, launch, run

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


@pytest.mark.parametrize("name", pages.PROGRAM_OF.values())
def test_at_most_ten_lines_change(name: str) -> None:
    found = of_program(name)
    assert 0 < found.changed <= MOST_CHANGED


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)
def test_a_page_has_the_present_programs_and_numbers(path: Path) -> None:
    text = path.read_text()
    assert pages.written(path, text) == text, "python -m tests.migration writes the generated parts"


def losses(finished: Finished) -> list[str]:
    assert finished.code == 0
    return re.findall(r"loss: (\S+)", finished.text)


def weights(path: Path) -> list[np.ndarray]:
    import tensorflow as tf

    return tf.keras.models.load_model(path, compile=False).get_weights()


@pytest.mark.parametrize("name", ONE_DEVICE)
def test_two_workers_train_what_one_device_trains(name: str, tmp_path: Path) -> None:
    program = PROGRAMS / name / "after.py"
    text = program.read_text()
    for old, new in ONE_DEVICE[name].items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "program.py").write_text(text)

    alone = run([sys.executable, *SEEDED, "program.py"], cwd=tmp_path / "one", deadline_seconds=DEADLINE_SECONDS)
    both = launch(
        "--workers", "2", "--", *SEEDED, str(program), cwd=tmp_path / "two", deadline_seconds=DEADLINE_SECONDS
    )

    assert losses(both) == losses(alone) != []
    assert float(losses(both)[-1]) < 0.6 * float(losses(both)[0])
    for file in SAVED[name]:
        expected, received = (weights(tmp_path / folder / file) for folder in ("one", "two"))
        for one, two in zip(expected, received, strict=True):
            assert np.abs(one - two).max() <= 1e-9 * np.abs(one).max()


def test_the_program_with_lamb_trains(tmp_path: Path) -> None:
    program = str(PROGRAMS / "addons" / "after.py")
    finished = run([sys.executable, program], cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert float(losses(finished)[-1]) < 0.5 * float(losses(finished)[0])
    assert (tmp_path / "digits.keras").exists()


def test_lamb_of_addons_trains_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_addons", reason="TensorFlow Addons supports TensorFlow up to 2.15")
    for version in ("before", "after"):
        (tmp_path / version).mkdir()
        command = [sys.executable, *SEEDED, str(PROGRAMS / "addons" / f"{version}.py")]
        assert run(command, cwd=tmp_path / version, deadline_seconds=DEADLINE_SECONDS).code == 0
    before, after = (weights(tmp_path / version / "digits.keras") for version in ("before", "after"))
    for one, two in zip(before, after, strict=True):
        assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max()
