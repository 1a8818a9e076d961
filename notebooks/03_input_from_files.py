# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How does each worker read its own part of my files?
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tfdist/tfdist/blob/main/notebooks/03_input_from_files.ipynb)
#
# You write files, see which worker reads which records, read them on 1, 2 and 4 workers in the same order, and begin in
# the middle of an epoch. The notebook needs no GPU and takes about a minute.

# %% [markdown]
# ## Install
#
# This cell does nothing if tfdist is installed. It keeps the TensorFlow that is there, such as Colab's.

# %%
try:
    import tfdist
except ImportError:
    from importlib.util import find_spec

    # Colab has a TensorFlow, over which no other one is installed.
    extras = "notebooks" if find_spec("tensorflow") else "cpu,notebooks"
    # %pip install --quiet "tfdist[{extras}] @ git+https://github.com/tfdist/tfdist"
    import tfdist

# %%
import os

# This notebook uses CPUs, so that it shows the same on a machine with GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# TensorFlow's own log lines would hide the results. Its errors are exceptions.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

tf.get_logger().setLevel("ERROR")

# %% [markdown]
# ## Write files
#
# A record is a number, an image and a label, as a `tf.train.Example`. `write_tfrecords` divides 1,400 records into five
# files, and writes an index beside them, from which tfdist knows how many records there are and where each one begins.

# %%
from sklearn.datasets import load_digits

from tfdist.input import InputState, distribute_files, write_tfrecords

digits = load_digits()


def serialized(number):
    image = digits.images[number].astype("uint8").tobytes()
    features = {
        "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[digits.target[number]])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


files = write_tfrecords(map(serialized, range(1400)), "digits/train", num_shards=5)
files

# %% [markdown]
# ## Read files
#
# `distribute_files` returns the dataset. `parse_fn` turns one record into one example. `global_batch_size` is the
# number of records of a step on all workers together.

# %%
FEATURES = {
    "number": tf.io.FixedLenFeature([], tf.int64),
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def parse_number(record):
    return tf.io.parse_single_example(record, FEATURES)["number"]


one_device = tfdist.create_strategy("one_device")
dataset = distribute_files(one_device, "digits/train-*", parse_fn=parse_number, global_batch_size=56, seed=1)
print(dataset.steps_per_epoch, "steps in an epoch")

# %% [markdown]
# ## Who reads what?
#
# The files are divided into eight *canonical shards*, on any number of workers. Each worker reads the same number of
# shards: all eight, four, or two. Here there are fewer files than shards, so files are cut between records. `plan` is
# the division.

# %%
print(dataset.plan)

# %% [markdown]
# The picture shows the five files, cut into the eight shards by white lines. The colour is the worker that reads a
# part.

# %%
import matplotlib.pyplot as plt

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


def draw_plan(axis, workers):
    shards_of_a_worker = len(dataset.plan.shards) // workers
    for shard, segments in enumerate(dataset.plan.shards):
        worker = shard // shards_of_a_worker
        for segment in segments:
            row = sorted(files).index(segment.file)
            axis.barh(row, segment.records, left=segment.start, color=COLOURS[worker], edgecolor="white", linewidth=1.5)
            axis.text(segment.start + segment.records / 2, row, shard, ha="center", va="center", color="white")
    axis.set(title=f"{workers} worker{'s' * (workers > 1)}", xlabel="record of the file")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


figure, axes = plt.subplots(1, 3, figsize=(11, 3), sharey=True, layout="constrained")
for axis, workers in zip(axes, (1, 2, 4), strict=True):
    draw_plan(axis, workers)
axes[0].set_yticks(range(5), [name.split("/")[-1] for name in sorted(files)])
axes[0].invert_yaxis()
handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS]
figure.legend(handles, [f"worker {worker}" for worker in range(4)], loc="outside lower center", ncols=4, frameon=False)
plt.show()

# %% [markdown]
# ## The order on 1, 2 and 4 workers
#
# Each worker writes the numbers of the records that it has read to a file. One worker is this notebook.

# %%
import itertools

import numpy as np

from tfdist.workers import worker_index


def read_an_epoch(strategy, state):
    dataset = distribute_files(strategy, "digits/train-*", parse_fn=parse_number, global_batch_size=56, state=state)
    steps = dataset.steps_per_epoch - state.step
    # The dataset repeats without end.
    batches = itertools.islice(dataset, steps)
    return np.stack([strategy.experimental_local_results(batch)[0].numpy() for batch in batches])


def read_on_workers(workers):
    strategy = tfdist.create_strategy()
    numbers = read_an_epoch(strategy, InputState(seed=1))
    np.save(f"read-by-{worker_index(strategy)}-of-{workers}.npy", numbers)
    print(f"has read {numbers.size} records in {len(numbers)} steps")


order = {1: read_an_epoch(one_device, InputState(seed=1))}

# %%
for workers in (2, 4):
    tfdist.notebook.run(read_on_workers, args=[workers], workers=workers)
    parts = [np.load(f"read-by-{index}-of-{workers}.npy") for index in range(workers)]
    order[workers] = np.concatenate(parts, axis=1)

# %% [markdown]
# Each column of the picture is a step, and each row is a place in the global batch. The colour is the number of the
# record. White lines separate the parts of the workers. The three pictures are equal.

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
for axis, (workers, numbers) in zip(axes, order.items(), strict=True):
    picture = axis.imshow(numbers.T, aspect="auto", cmap="viridis", interpolation="nearest")
    for part in range(1, workers):
        axis.axhline(part * 56 / workers - 0.5, color="white", linewidth=2)
    axis.set(title=f"{workers} worker{'s' * (workers > 1)}", xlabel="step")
axes[0].set_ylabel("place in the global batch")
figure.colorbar(picture, ax=axes, label="number of the record", pad=0.01)
plt.show()

# %%
assert np.array_equal(order[1], order[2]) and np.array_equal(order[1], order[4])
assert np.array_equal(np.sort(order[1], axis=None), np.arange(1400))
print("1, 2 and 4 workers read the same global batches; an epoch has every record once")

# %% [markdown]
# ## Begin in the middle
#
# An `InputState` is a position in the data: a few plain numbers, which you can save with a checkpoint. One device
# begins here at step 10 of the epoch that four workers have read, and reads the same records as they did.

# %%
state = InputState(seed=1).after(10, steps_per_epoch=dataset.steps_per_epoch)
print(state)
rest = read_an_epoch(one_device, state)
assert np.array_equal(rest, order[4][10:])
print(f"the last {len(rest)} steps are the same")

# %% [markdown]
# ## Train
#
# `fit` takes the dataset. It knows how many steps an epoch has.


# %%
def parse(record):
    example = tf.io.parse_single_example(record, FEATURES)
    image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [64])
    return tf.cast(image, tf.float32) / 16, example["label"]


train = distribute_files(one_device, "digits/train-*", parse_fn=parse, global_batch_size=56, seed=1)
tf.keras.utils.set_random_seed(1)
with one_device.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.005),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(train, epochs=8, verbose=0)
loss, accuracy = model.evaluate(digits.data[1400:] / 16, digits.target[1400:], verbose=0)
print(f"held-out accuracy {accuracy:.3f}")

# %% [markdown]
# ## What next?
#
# `docs/input.md` describes other formats than TFRecord files, bad records, data in memory, and the speed of reading.
