"""The data of `tfdist train`: labelled images in TFRecord shards, which are written on first use."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.input import count_records, write_tfrecords

_SHARDS = 8
_HELD_OUT_INTERVAL = 5
_INDEX = "dataset.json"
_FASHION_MNIST_FOLDERS = ("/usr/share/datasets/fashion-mnist", str(Path.home() / ".keras/datasets/fashion-mnist"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageData:
    """Labelled images in TFRecord files.

    Attributes:
        name: name of the data set.
        train_files: files with the training images.
        eval_files: files with the held-out images.
        num_train: number of images in train_files.
        num_eval: number of images in eval_files.
        image_shape: height, width and channels.
        num_classes: number of labels.

    Example:
        >>> import tempfile
        >>> from tfdist.train.data import synthetic
        >>> images = synthetic(tempfile.mkdtemp(), image_shape=(4, 4, 1), num_classes=2)
        >>> images.num_train, images.num_eval, len(images.train_files)
        (2048, 256, 8)
    """

    name: str
    train_files: tuple[str, ...]
    eval_files: tuple[str, ...]
    num_train: int
    num_eval: int
    image_shape: tuple[int, int, int]
    num_classes: int

    def parse(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the image, float32 from 0 to 255, and the label, int64, of a serialized tf.train.Example.

        Args:
            record: scalar string, an Example with the features `image` (the raw bytes of the pixels, or a JPEG or PNG
                of the shape `image_shape`) and `label` (an integer).
        """
        features = tf.io.parse_single_example(
            record, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        )
        size = int(np.prod(self.image_shape))
        image = tf.cond(
            tf.strings.length(features["image"]) == size,
            lambda: tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), self.image_shape),
            lambda: tf.io.decode_image(features["image"], self.image_shape[2], expand_animations=False),
        )
        return tf.cast(tf.ensure_shape(image, self.image_shape), tf.float32), features["label"]


def digits(data_dir: str | None) -> ImageData:
    """Returns scikit-learn's 1,797 handwritten digits, images of 8 x 8, of which every fifth is held out.

    Args:
        data_dir: folder for the TFRecord files; None is ~/.cache/tfdist.

    Raises:
        ImportError: if scikit-learn is not installed.
    """

    def load() -> Splits:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ImportError(
                "expected scikit-learn for --data=digits, found none; pip install '.[train]' in a checkout of tfdist."
            ) from error
        images, labels = load_digits(return_X_y=True)
        images = np.minimum(images.reshape(-1, 8, 8, 1) * 16, 255).astype(np.uint8)
        held_out = np.arange(len(labels)) % _HELD_OUT_INTERVAL == 0
        return {"train": (images[~held_out], labels[~held_out]), "eval": (images[held_out], labels[held_out])}

    return _write_once("digits", load, data_dir)


def fashion_mnist(data_dir: str | None) -> ImageData:
    """Returns Fashion-MNIST as TFRecord files.

    Args:
        data_dir: folder for the TFRecord files, which may also contain the four .gz files; None is ~/.cache/tfdist.

    Raises:
        FileNotFoundError: if the four files are not found; the message names the folders that were searched.
    """
    return _write_once("fashion_mnist", lambda: fashion_mnist_images(data_dir), data_dir)


def fashion_mnist_images(data_dir: str | None = None) -> Splits:
    """Returns Fashion-MNIST, 70,000 images of 28 x 28 in 10 classes, from its four .gz files.

    Args:
        data_dir: folder that is searched before the folders of Debian's package dataset-fashion-mnist and of Keras's
            downloads; None searches only these two folders.

    Raises:
        FileNotFoundError: if the four files are not found; the message names the folders that were searched.
    """
    folders = [*([data_dir] if data_dir else []), *_FASHION_MNIST_FOLDERS]
    for folder in folders:
        if os.path.exists(os.path.join(folder, "train-images-idx3-ubyte.gz")):
            return {
                split: (
                    _read_idx(f"{folder}/{prefix}-images-idx3-ubyte.gz")[..., None],
                    _read_idx(f"{folder}/{prefix}-labels-idx1-ubyte.gz"),
                )
                for split, prefix in (("train", "train"), ("eval", "t10k"))
            }
    raise FileNotFoundError(
        "expected the four files of Fashion-MNIST, such as train-images-idx3-ubyte.gz, found none in "
        f"{', '.join(folders)}; "
        "install Debian's dataset-fashion-mnist, call keras.datasets.fashion_mnist.load_data() once, or name the "
        "folder of the files with --data_dir."
    )


def synthetic(data_dir: str | None, *, image_shape: tuple[int, int, int], num_classes: int) -> ImageData:
    """Returns random images of any shape, whose brightness depends on their label, for measurements of speed.

    Args:
        data_dir: folder for the TFRecord files; None is ~/.cache/tfdist.
        image_shape: height, width and channels.
        num_classes: number of labels.
    """

    def load() -> Splits:
        rng = np.random.default_rng(0)

        # With more than 256 classes, some classes have the same brightness.
        width = max(1, 256 // num_classes)

        def split(count: int) -> tuple[np.ndarray, np.ndarray]:
            labels = rng.integers(0, num_classes, count)
            noise = rng.integers(0, width, (count, *image_shape))
            return (labels.reshape(-1, 1, 1, 1) * width + noise).astype(np.uint8), labels

        return {"train": split(2048), "eval": split(256)}

    shape = "x".join(map(str, image_shape))
    # The random labels may not contain the last classes, so that the number of classes in the files may be too small.
    return dataclasses.replace(_write_once(f"synthetic-{shape}-{num_classes}", load, data_dir), num_classes=num_classes)


def tfrecord(*, train_files: str, eval_files: str, image_shape: tuple[int, int, int], num_classes: int) -> ImageData:
    """Returns images from the user's own TFRecord files, after counting their records.

    Args:
        train_files: pattern of the training files, whose records have the features `image` and `label`.
        eval_files: pattern of the held-out files.
        image_shape: height, width and channels.
        num_classes: number of labels.

    Raises:
        ValueError: if a pattern matches no file.
    """
    found = {}
    for flag, pattern in (("train_files", train_files), ("eval_files", eval_files)):
        found[flag] = tuple(sorted(tf.io.gfile.glob(pattern)))
        if not found[flag]:
            raise ValueError(f"expected files for --{flag}, found none that match {pattern!r}; correct the pattern.")
    return ImageData(
        name="tfrecord",
        **found,
        num_train=count_records(found["train_files"]),
        num_eval=count_records(found["eval_files"]),
        image_shape=image_shape,
        num_classes=num_classes,
    )


Splits = dict[str, tuple[np.ndarray, np.ndarray]]


def _write_once(name: str, load: Callable[[], Splits], data_dir: str | None) -> ImageData:
    """Writes the shards to a folder, unless the folder exists; several workers may call this function at once."""
    folder = Path(data_dir or Path.home() / ".cache" / "tfdist") / name
    if not (folder / _INDEX).exists():
        splits = load()
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            _write(splits, scratch)
            # mkdtemp makes a folder that other users cannot read.
            scratch.chmod(0o755)
            scratch.rename(folder)
        except OSError:
            # Another worker may have renamed its folder first; its files have the same content.
            if not (folder / _INDEX).exists():
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    index = json.loads((folder / _INDEX).read_text())
    return ImageData(
        name=name,
        train_files=tuple(str(folder / file) for file in index["train"]["files"]),
        eval_files=tuple(str(folder / file) for file in index["eval"]["files"]),
        num_train=index["train"]["records"],
        num_eval=index["eval"]["records"],
        image_shape=tuple(index["image_shape"]),
        num_classes=index["num_classes"],
    )


def _write(splits: Splits, folder: Path) -> None:
    index: dict[str, Any] = {"image_shape": splits["train"][0].shape[1:]}
    index["num_classes"] = int(max(labels.max() for _, labels in splits.values())) + 1
    for split, (images, labels) in splits.items():
        files = write_tfrecords(_serialize(images, labels), str(folder / split), num_shards=_SHARDS)
        index[split] = {"files": [os.path.basename(file) for file in files], "records": len(labels)}
    (folder / _INDEX).write_text(json.dumps(index, indent=1))


def _serialize(images: np.ndarray, labels: np.ndarray) -> Iterator[bytes]:
    for image, label in zip(images, labels, strict=True):
        yield tf.train.Example(
            features=tf.train.Features(
                feature={
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }
            )
        ).SerializeToString()


def _read_idx(path: str) -> np.ndarray:
    with gzip.open(path) as file:
        content = file.read()
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
