"""`tfdist train` goes on where it was interrupted, and a training ends when its evaluator asks for it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.processes import Finished, finish, launch, run, start

DEADLINE_SECONDS = 240

# If a file named `wait` exists, step 30 of a process makes a file `reached` and waits for a file `go`.
MODEL = """
import os, time
import tensorflow as tf

calls = 0
if hasattr(tf.keras.backend, "experimental"):
    # Keras 2 keeps no state of Dropout's random numbers without this call.
    tf.keras.backend.experimental.enable_tf_random_generator()


def wait():
    global calls
    calls += 1
    if calls == 30 and os.path.exists("wait"):
        open("reached", "w").close()
        end = time.monotonic() + 200
        while not os.path.exists("go") and time.monotonic() < end:
            time.sleep(0.01)


class Waiting(tf.keras.layers.Layer):
    supports_jit = False

    def call(self, x):
        with tf.control_dependencies([tf.py_function(wait, [], [])]):
            return tf.identity(x)


def model(*, image_shape, num_classes):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input(image_shape), Waiting(), layers.Flatten(), layers.Dropout(0.2), layers.Dense(num_classes)]
    )
"""


def command(tmp_path: Path, *flags: str) -> list[str]:
    given = ["--model=mine:model", "--strategy=one_device", "--steps=70", f"--data_dir={tmp_path}/data", *flags]
    return [sys.executable, "-m", "tfdist", "train", *given]


def result(ended: Finished) -> tuple[str, str]:
    assert ended.code == 0
    return tuple(re.search(rf"{name}\s+│ (\w+)", ended.text)[1] for name in ("steps", "weights"))


def test_a_training_goes_on_after_sigterm_and_its_folder_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    expected = result(run(command(tmp_path, "--model_dir=whole"), cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS))
    assert expected[0] == "70"

    (tmp_path / "wait").touch()
    first = start(command(tmp_path), cwd=tmp_path)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (tmp_path / "reached").exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    second = run(command(tmp_path), cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    os.kill(first.pid, signal.SIGTERM)
    (tmp_path / "go").touch()
    assert finish(first, deadline_seconds=DEADLINE_SECONDS).code == 75
    assert second.code == 2
    assert "tfdist train: expected no other training in the directory 'tfdist-model/snapshots', received" in second.text
    assert "Traceback" not in second.text

    (tmp_path / "wait").unlink()
    third = run(command(tmp_path, "--resume=require"), cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert "the training goes on from the snapshot of step" in third.text
    assert result(third) == expected
    again = run(command(tmp_path), cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert "the training is finished" in again.text
    assert result(again) == expected


@pytest.mark.full
def test_two_workers_end_when_the_evaluator_asks_for_it(tmp_path: Path) -> None:
    # Without a learning rate, no evaluation is better than the first one.
    flags = ["--model=mlp", "--optimizer=sgd", "--learning_rate=0", "--epochs=1000", "--stop_patience=1"]
    flags += ["--snapshot_every_steps=20", f"--data_dir={tmp_path}/data"]
    tasks = ["--workers", "2", "--evaluator", "--evaluator-grace-seconds", "120"]
    ended = launch(*tasks, "-m", "tfdist.train", *flags, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert ended.code == 0
    assert "asked the training to end: 1 evaluation without a better loss" in ended.text
    lines = re.findall(r"worker \d: accuracy .*, steps (\d+), weights (\w+)", ended.text)
    assert len(lines) == 2
    assert len(set(lines)) == 1
    steps = int(lines[0][0])
    assert steps < 1000 * 22
    assert f"the training ends after epoch {steps // 22}, as the evaluator asks" in ended.text
    folder = tmp_path / "tfdist-model"
    last = json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])
    assert last["step"] == steps
    assert (folder / "best.keras").exists()
