"""What `tfdist train` writes for TensorBoard is read back from its event files."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.processes import launch
from tfdist.keras_compat.version import keras
from tfdist.train import cli
from tfdist.train.board import TrainingBoard, sketch
from tfdist.train.confusion import as_image, as_table, confusion_matrix, write_confusion_matrix


def events(folder):
    """Returns the values of a run by tag, of scalars, histograms, images and texts."""
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return {tag: found.Tensors(tag) for tag in found.Tags()["tensors"]}


def value(event):
    return tf.make_ndarray(event.tensor_proto)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The logs of two workers that compress their gradients."""
    place = tmp_path_factory.mktemp("train")
    flags = ["--epochs=2", f"--data_dir={place}/data", "--compression=fp16", "--steps_per_epoch=12"]
    ended = launch("--workers", "2", "-m", "tfdist.train", *flags, cwd=place, deadline_seconds=180)
    assert ended.code == 0
    return place / "tfdist-model" / "logs"


def test_there_is_a_histogram_of_step_times_for_each_worker_and_epoch(logs):
    found = events(logs / "workers")
    for worker in range(2):
        histograms = found[f"step_seconds/worker_{worker}"]
        assert [event.step for event in histograms] == [0, 1]
        for event in histograms:
            lower, upper, count = value(event).T
            assert count.sum() == 64
            assert 0 < lower[0] <= upper[-1] < 180


def test_bytes_and_ratio_of_compression_are_scalars(logs):
    found = events(logs / "workers")
    assert [value(event).item() for event in found["gradients/ratio"]] == pytest.approx([2.0, 2.0], rel=0.01)
    first, second = (value(event).item() for event in found["gradients/bytes_per_step"])
    assert first == second > 1000


def test_keras_writes_its_scalars_in_a_run_beside(logs):
    assert {"epoch_loss", "epoch_accuracy"} <= set(events(logs / "train"))


def test_there_is_a_confusion_matrix_of_all_held_out_records(logs):
    found = events(logs / "evaluation")
    (image,), (table,) = found["confusion_matrix"], found["confusion_table"]
    assert image.step == table.step == 24
    width, height, png = value(image).tolist()
    assert (width, height, png[:4]) == (b"480", b"480", b"\x89PNG")
    rows = [line.split("|")[2:-1] for line in value(table).item().decode().splitlines()[2:]]
    assert sum(int(count) for row in rows for count in row) == 360


def test_a_single_process_without_compression_has_step_times_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--epochs=1", "--model=mlp", f"--data_dir={tmp_path}/data"]) == 0
    found = events(tmp_path / "tfdist-model" / "logs" / "workers")
    assert set(found) == {"step_seconds/worker_0"}


STRAGGLER = """
import json, os, sys, time
import tensorflow as tf
from tfdist.train import data
from tfdist.train.cli import main

if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    parse = data.ImageData.parse

    def slow(self, record):
        image, label = parse(self, record)
        wait = tf.py_function(lambda: time.sleep(0.006), [], [])
        with tf.control_dependencies([wait] if wait is not None else []):
            return tf.identity(image), label

    data.ImageData.parse = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
def test_the_share_of_waiting_tells_a_straggler(tmp_path):
    (tmp_path / "program.py").write_text(STRAGGLER)
    flags = ["--epochs=12", f"--data_dir={tmp_path}/data"]
    ended = launch("--workers", "2", "--", "program.py", *flags, cwd=tmp_path, deadline_seconds=240)
    assert ended.code == 0
    found = events(tmp_path / "tfdist-model" / "logs" / "workers")
    first, second = (value(found[f"waiting_share/worker_{worker}"][-1]).item() for worker in range(2))
    assert first > second + 0.2


def test_a_share_of_waiting_is_a_scalar(tmp_path):
    watch = types.SimpleNamespace(waiting_share=lambda: 0.25)
    model = keras().Sequential([keras().layers.Input([2]), keras().layers.Dense(1)])
    model.compile("sgd", "mse")
    board = TrainingBoard(str(tmp_path), watch=watch, is_compressed=False)
    model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=2, verbose=0, callbacks=[board])
    found = events(tmp_path / "workers")
    assert [value(event).item() for event in found["waiting_share/worker_0"]] == [0.25]


def test_rows_of_the_matrix_are_labels_and_columns_are_predictions():
    data = tf.data.Dataset.from_tensor_slices((tf.one_hot([0, 0, 2, 1], 3), [0, 1, 2, 1])).batch(3)
    matrix = confusion_matrix(lambda images, training: images, data, num_classes=3)
    assert matrix.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_a_matrix_is_written_as_picture_and_table(tmp_path):
    matrix = np.array([[3, 1], [0, 4]])
    write_confusion_matrix(matrix, str(tmp_path), step=7)
    found = events(tmp_path)
    assert value(found["confusion_table"][0]).item().decode() == as_table(matrix)
    assert value(found["confusion_matrix"][0])[2].startswith(b"\x89PNG")


def test_a_label_without_records_has_no_share():
    assert as_image(np.zeros([2, 2], np.int64)).tolist() == np.ones([1, 480, 480, 1]).tolist()


def test_more_labels_than_pixels_make_a_pixel_each():
    assert as_image(np.eye(1000, dtype=np.int64)).shape == (1, 1000, 1000, 1)


def test_a_sketch_has_a_fixed_length():
    assert len(sketch([])) == len(sketch([0.1])) == len(sketch(range(1000))) == 64
    assert all(map(math.isnan, sketch([])))
