from __future__ import annotations

import gzip
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from tfdist.input import write_tfrecords
from tfdist.train import data

# Two processes run this program. Each waits until both have found no data, and then both write the data.
WRITER = """
import os, sys, time
from tfdist.train import data

folder, own, other = sys.argv[1:]
stock = data.write_tfrecords

def write_after_both_started(*args, **kwargs):
    open(own, "w").close()
    end = time.monotonic() + 100
    while not os.path.exists(other):
        if time.monotonic() > end:
            sys.exit("expected the other process to write too, received no sign of it")
        time.sleep(0.01)
    return stock(*args, **kwargs)

data.write_tfrecords = write_after_both_started
found = data.digits(folder)
print(found.num_train, found.num_eval)
"""


def read(found, split):
    files = getattr(found, f"{split}_files")
    examples = list(tf.data.TFRecordDataset(list(files)).map(found.parse))
    return [image.numpy() for image, _ in examples], [int(label) for _, label in examples]


def example(image, label):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def multiset(images, labels):
    return sorted((np.asarray(image, np.uint8).tobytes(), label) for image, label in zip(images, labels, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def digits(folder):
    return data.digits(str(folder))


class TestDigits:
    def test_the_counts_add_up_to_those_of_scikit_learn(self, digits):
        total = len(load_digits().target)
        held_out = -(-total // 5)
        assert (digits.num_train, digits.num_eval) == (total - held_out, held_out) == (1437, 360)
        assert (digits.image_shape, digits.num_classes) == ((8, 8, 1), 10)
        assert len(digits.train_files) == len(digits.eval_files) == 8

    def test_both_splits_together_are_scikit_learns_images(self, digits):
        images, labels = load_digits(return_X_y=True)
        expected = np.minimum(images * 16, 255).astype(np.uint8)
        train, held_out = (read(digits, split) for split in ("train", "eval"))
        assert len(train[0]) == 1437
        assert len(held_out[0]) == 360
        assert multiset(train[0] + held_out[0], train[1] + held_out[1]) == multiset(expected, map(int, labels))
        assert multiset(*held_out) == multiset(expected[::5], map(int, labels[::5]))
        assert train[0][0].dtype == np.float32
        assert train[0][0].shape == (8, 8, 1)

    def test_the_splits_do_not_overlap(self, digits):
        assert {image.tobytes() for image in read(digits, "train")[0]}.isdisjoint(
            {image.tobytes() for image in read(digits, "eval")[0]}
        )

    def test_the_digits_are_written_once(self, digits, folder, monkeypatch):
        def stamps():
            return {file: os.stat(file).st_mtime_ns for file in [folder / "digits", *folder.glob("digits/*")]}

        before = stamps()
        monkeypatch.setattr(data, "write_tfrecords", None)
        assert data.digits(str(folder)) == digits
        assert stamps() == before
        # The folder, 8 shards and an index of each split, and the index of the data set, which is written last.
        assert len(before) == 1 + (8 + 1) + (8 + 1) + 1

    def test_two_processes_may_write_at_once(self, children, tmp_path):
        folder, marks = str(tmp_path / "shared"), [str(tmp_path / "a"), str(tmp_path / "b")]
        started = [children.start(WRITER, folder, *marks), children.start(WRITER, folder, *reversed(marks))]
        ended = [child.end() for child in started]
        assert [(end.code, end.out) for end in ended] == [(0, "1437 360\n")] * 2
        assert os.listdir(folder) == ["digits"]
        assert data.digits(folder).num_train == 1437

    def test_a_folder_with_other_files_is_refused_and_not_changed(self, tmp_path):
        (tmp_path / "digits").mkdir()
        (tmp_path / "digits" / "mine.txt").write_text("keep me")
        with pytest.raises(OSError, match="digits"):
            data.digits(str(tmp_path))
        assert os.listdir(tmp_path) == ["digits"]
        assert os.listdir(tmp_path / "digits") == ["mine.txt"]

    def test_without_a_folder_the_digits_are_written_to_the_cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Path, "home", lambda: tmp_path)
        assert data.digits(None).train_files[0].startswith(str(tmp_path / ".cache" / "tfdist" / "digits"))

    def test_without_scikit_learn_the_refusal_names_the_extra(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        message = "expected scikit-learn for --data=digits, found none; pip install '.[train]' in a checkout of tfdist."
        with pytest.raises(ImportError, match=re.escape(message)):
            data.digits(str(tmp_path))
        assert os.listdir(tmp_path) == []


class TestParse:
    @pytest.fixture
    def shaped(self):
        return data.ImageData(
            name="", train_files=(), eval_files=(), num_train=0, num_eval=0, image_shape=(4, 3, 3), num_classes=2
        )

    @pytest.fixture
    def pixels(self):
        return np.random.default_rng(0).integers(0, 256, (4, 3, 3)).astype(np.uint8)

    @pytest.mark.parametrize("encode", ["raw", "png"])
    def test_raw_and_png_images_are_decoded(self, encode, shaped, pixels):
        content = pixels.tobytes() if encode == "raw" else tf.io.encode_png(pixels).numpy()
        image, label = shaped.parse(tf.constant(example(content, 1)))
        np.testing.assert_array_equal(image.numpy(), pixels.astype(np.float32))
        assert (image.dtype, label.dtype, int(label)) == (tf.float32, tf.int64, 1)

    def test_a_jpeg_is_decoded(self, shaped):
        content = tf.io.encode_jpeg(np.full((4, 3, 3), 200, np.uint8)).numpy()
        image, _ = shaped.parse(tf.constant(example(content, 0)))
        np.testing.assert_allclose(image.numpy(), 200.0, atol=2)

    def test_an_image_of_another_size_is_an_error(self, shaped, pixels):
        content = tf.io.encode_png(pixels[:2]).numpy()
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
            shaped.parse(tf.constant(example(content, 0)))


class TestSynthetic:
    def test_the_brightness_of_an_image_depends_on_its_label(self, folder):
        found = data.synthetic(str(folder), image_shape=(4, 6, 3), num_classes=4)
        assert (found.num_train, found.num_eval, found.image_shape, found.num_classes) == (2048, 256, (4, 6, 3), 4)
        images, labels = read(found, "eval")
        assert [int(image.mean()) // 64 for image in images] == labels
        assert images[0].shape == (4, 6, 3)

    @pytest.mark.parametrize("num_classes", [pytest.param(256, marks=pytest.mark.full), 1000])
    def test_many_classes_give_labels_above_200(self, num_classes, folder):
        found = data.synthetic(str(folder), image_shape=(2, 2, 1), num_classes=num_classes)
        assert found.num_classes == num_classes
        assert 200 < max(read(found, "train")[1]) < num_classes

    def test_each_shape_has_a_folder_of_its_own(self, folder):
        one = data.synthetic(str(folder), image_shape=(2, 2, 1), num_classes=2)
        other = data.synthetic(str(folder), image_shape=(2, 2, 3), num_classes=2)
        assert {os.path.dirname(file) for file in one.train_files}.isdisjoint(map(os.path.dirname, other.train_files))


class TestFashionMnist:
    def test_the_images_come_from_the_four_files(self, tmp_path):
        rng = np.random.default_rng(0)
        content = {}
        for prefix, count in (("train", 20), ("t10k", 7)):
            images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
            labels = (np.arange(count) % 10).astype(np.uint8)
            content[prefix] = images, labels
            for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
                header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
                with gzip.open(tmp_path / f"{prefix}-{kind}-ubyte.gz", "wb") as file:
                    file.write(header + array.tobytes())
        found = data.fashion_mnist(str(tmp_path))
        assert (found.num_train, found.num_eval, found.image_shape, found.num_classes) == (20, 7, (28, 28, 1), 10)
        for split, prefix in (("train", "train"), ("eval", "t10k")):
            images, labels = content[prefix]
            assert multiset(*read(found, split)) == multiset(images, map(int, labels))

    def test_without_the_four_files_the_refusal_names_the_folders(self, tmp_path, monkeypatch):
        monkeypatch.setattr(data, "_FASHION_MNIST_FOLDERS", ("/nowhere/a", "/nowhere/b"))
        message = (
            "expected the four files of Fashion-MNIST, such as train-images-idx3-ubyte.gz, found none in "
            f"{tmp_path}, /nowhere/a, /nowhere/b; install Debian's dataset-fashion-mnist, call"
        )
        with pytest.raises(FileNotFoundError, match=re.escape(message)):
            data.fashion_mnist(str(tmp_path))
        assert os.listdir(tmp_path) == []


class TestTfrecord:
    def test_the_records_of_the_users_own_files_are_counted(self, tmp_path):
        for split, count in (("train", 5), ("eval", 3)):
            write_tfrecords([example(b"x" * 4, 0)] * count, str(tmp_path / split), num_shards=2)
        found = data.tfrecord(
            train_files=str(tmp_path / "train-*"),
            eval_files=str(tmp_path / "eval-*"),
            image_shape=(2, 2, 1),
            num_classes=3,
        )
        assert (found.num_train, found.num_eval, found.num_classes) == (5, 3, 3)
        assert found.train_files == tuple(sorted(map(str, tmp_path.glob("train-*"))))

    @pytest.mark.parametrize("missing", ["train_files", "eval_files"])
    def test_a_pattern_that_matches_nothing_is_refused(self, missing, tmp_path):
        write_tfrecords([example(b"x", 0)], str(tmp_path / "there"), num_shards=1)
        patterns = dict.fromkeys(("train_files", "eval_files"), str(tmp_path / "there-*"))
        patterns[missing] = str(tmp_path / "nothing-*")
        message = f"expected files for --{missing}, found none that match {patterns[missing]!r}; correct the pattern."
        with pytest.raises(ValueError, match=re.escape(message)):
            data.tfrecord(**patterns, image_shape=(1, 1, 1), num_classes=2)
