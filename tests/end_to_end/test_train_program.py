"""`tfdist train`, the main command of the README, on every strategy."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.processes import launch, launch_command, run

# For each strategy: arguments of the launcher, flags of the program, lowest accepted accuracy on held-out data.
STRATEGIES = {
    "one_device": (["--workers", "1"], [], 0.96),
    "mirrored": (["--workers", "1"], ["--devices=2"], 0.96),
    "multi_worker_mirrored": (["--workers", "2"], [], 0.97),
    "parameter_server": (["--workers", "2", "--ps", "1"], [], 0.96),
    "central_storage": (["--workers", "1"], ["--devices=2"], 0.96),
}

EVALUATE = """
import sys
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
images, labels = load_digits(return_X_y=True)
held_out = np.arange(len(labels)) % 5 == 0
images = np.minimum(images[held_out].reshape(-1, 8, 8, 1) * 16, 255).astype("uint8").astype("float32")
model = tf.keras.models.load_model(sys.argv[1])
accuracy = (model.predict(images, verbose=0).argmax(axis=1) == labels[held_out]).mean()
print(f"accuracy {accuracy:.4f}, iterations {int(model.optimizer.iterations.numpy())}")
"""


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=pytest.mark.full if name != "multi_worker_mirrored" else ()) for name in STRATEGIES],
)
def test_digits_are_learned_and_the_saved_model_is_the_one_that_was_evaluated(strategy: str, tmp_path: Path) -> None:
    arguments, flags, least = STRATEGIES[strategy]
    command = ["-m", "tfdist.train", f"--strategy={strategy}", f"--data_dir={tmp_path}/data", *flags]
    ended = launch(*arguments, "--", *command, cwd=tmp_path, deadline_seconds=180)
    assert ended.code == 0

    accuracy = float(re.search(r"accuracy \(held-out\) │ ([\d.]+)", ended.text)[1])
    steps = int(re.search(r"steps\s+│ (\d+)", ended.text)[1])
    assert accuracy >= least
    assert steps == 20 * (1437 // 64)

    lines = re.findall(r"worker \d: (accuracy .*)", ended.text)
    assert len(set(lines)) <= 1, "workers differ in accuracy, loss or weights"
    assert len(lines) == (0 if strategy == "parameter_server" else int(arguments[1]))

    folder = tmp_path / "tfdist-model"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.keras", "logs", "model.keras", "snapshots"]
    assert list((folder / "logs").rglob("events.out.tfevents.*"))
    (tmp_path / "evaluate.py").write_text(EVALUATE)
    loaded = run([sys.executable, "evaluate.py", str(folder / "model.keras")], cwd=tmp_path, deadline_seconds=120)
    assert f"accuracy {accuracy:.4f}, iterations {steps}" in loaded.text


@pytest.mark.full
def test_only_the_chief_shows_progress(tmp_path: Path) -> None:
    flags = ["--epochs=2", f"--data_dir={tmp_path}/data"]
    ended = launch("--workers", "2", "-m", "tfdist.train", *flags, cwd=tmp_path, deadline_seconds=120)
    assert ended.code == 0
    assert "[worker 0] Epoch 2/2" in ended.text
    assert "[worker 1] Epoch" not in ended.text


def test_no_line_of_a_dependency_is_shown_before_the_first_step_and_the_log_files_have_them(tmp_path: Path) -> None:
    command = launch_command("--workers", "2", "--log-dir", "logs", "-m", "tfdist.train", "--epochs=1")
    env = {"TF_CPP_MIN_LOG_LEVEL": "0", "CUDA_VISIBLE_DEVICES": "", "HOME": str(tmp_path)}
    ended = run(command, cwd=tmp_path, deadline_seconds=180, env=env)
    assert ended.code == 0
    before = ended.text[: ended.text.index("22/22")].splitlines()[:-1]
    own = re.compile(r"tfdist launch: |\[workers? [^]]+\] (tfdist: |step \d+/22,)")
    assert [line for line in before if not own.match(line)] == []
    kinds = ["tfdist launch: 2 workers on ", "tfdist: strategy multi_worker_mirrored: ", "tfdist: 8 files with "]
    assert [kind for kind, line in zip(kinds, before, strict=False) if kind in line] == kinds
    later = [line for line in before[3:] if not re.search(r"snapshot|step \d+/22,", line)]
    assert later == [], "three lines of the start, and then those of progress and of the pace of snapshots"
    for worker in range(2):
        assert re.search(r"^I\d{4} .*\] ", (tmp_path / "logs" / f"worker-{worker}.log").read_text(), re.MULTILINE)
    assert re.search(r"^\[worker 0\] next: `tensorboard --logdir tfdist-model/logs`", ended.text, re.MULTILINE)
    assert re.search(r"logs in logs; \d+ log lines of dependencies are only there, --show all", ended.text)


def test_an_evaluator_evaluates_the_final_model(tmp_path: Path) -> None:
    flags = ["--epochs=2", f"--data_dir={tmp_path}/data"]
    ended = launch("--workers", "1", "--evaluator", "-m", "tfdist.train", *flags, cwd=tmp_path, deadline_seconds=150)
    assert ended.code == 0
    assert re.search(r"\[evaluator 0\] tfdist: evaluated step 44 \(snapshot-\S+\): accuracy 0\.", ended.text)
    assert (tmp_path / "tfdist-model" / "best.keras").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--model=mlp", "--optimizer=sgd", "--learning_rate=0.05", "--precision=mixed_bfloat16"],
        pytest.param(["--sync_batch_norm", "--strategy=mirrored", "--devices=2"], marks=pytest.mark.full),
        pytest.param(
            ["--data=synthetic", "--image_shape=32,32,3", "--num_classes=4", "--model=resnet50", "--steps_per_epoch=2"],
            marks=pytest.mark.full,
        ),
    ],
    ids=["mlp-sgd-bfloat16", "sync_batch_norm", "resnet50"],
)
def test_flags_reach_the_training(flags: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfdist", "train", "--epochs=1", f"--data_dir={tmp_path}/data", *flags]
    assert run(command, cwd=tmp_path, deadline_seconds=240).code == 0


MODEL_WITHOUT_INPUT = """
import tensorflow as tf


def model(*, image_shape, num_classes):
    return tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(num_classes)])
"""


@pytest.mark.full
def test_a_model_of_the_user_that_is_built_without_an_input_layer_trains(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL_WITHOUT_INPUT)
    flags = ["--model=mine:model", "--optimizer=lamb", "--epochs=2", f"--data_dir={tmp_path}/data"]
    ended = run([sys.executable, "-m", "tfdist", "train", *flags], cwd=tmp_path, deadline_seconds=120)
    assert ended.code == 0
    assert "accuracy" in ended.text


@pytest.mark.full
def test_two_workers_with_compressed_gradients_end_with_the_same_weights(tmp_path: Path) -> None:
    flags = ["--model=mlp", "--epochs=1", "--compression=topk:0.05", "--backward_passes_per_step=2"]
    ended = launch(
        "--workers",
        "2",
        "-m",
        "tfdist.train",
        *flags,
        f"--data_dir={tmp_path}/data",
        cwd=tmp_path,
        deadline_seconds=150,
    )
    assert ended.code == 0
    assert len(set(re.findall(r"accuracy 0\.\d+, loss [\d.]+, steps \d+, weights \w+", ended.text))) == 1
    found = re.search(r"topk:0.05, ([\d,]+) bytes a step and replica, ([\d.]+) times fewer", ended.text)
    assert found is not None
    # Eight bytes are sent for each twenty elements of 4 bytes, which is a tenth. Small variables are not compressed.
    assert 8 < float(found[2]) <= 10
