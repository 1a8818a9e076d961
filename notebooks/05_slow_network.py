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
# # How do I train over a slow network?
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tfdist/tfdist/blob/main/notebooks/05_slow_network.ipynb)
#
# In each step, workers send each other their gradients. You send them in packs, while backpropagation is still running,
# and you compress them. You count the bytes and compare the accuracy. The notebook needs no GPU and takes about a
# minute.

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
# ## The program
#
# `DistributedOptimizer` wraps any optimizer of Keras. Its options decide how gradients are sent. Like the model, it is
# made in the scope of the strategy.

# %%
from sklearn.datasets import load_digits

from tfdist import AllReduceOptions
from tfdist.optimizers import DistributedOptimizer, gradient_traffic

digits = load_digits()
images = digits.data.astype("float32") / 16
labels = digits.target


def train(strategy, options, epochs):
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((64,)),
                tf.keras.layers.Dense(512, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
        if options is not None:
            optimizer = DistributedOptimizer(optimizer, all_reduce=options)
        model.compile(
            optimizer,
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    test = (images[1400:], labels[1400:])
    history = model.fit(
        images[:1400],
        labels[:1400],
        batch_size=64,
        epochs=epochs,
        validation_data=test,
        validation_freq=2,
        verbose=0,
    )
    return model, history.history


# %% [markdown]
# ## Packs
#
# Without `DistributedOptimizer`, TensorFlow sends all gradients at once, after backpropagation has ended. With it, the
# gradients of the last layers leave while those of the first layers are still computed. `bytes_per_pack` is the size of
# a pack; 2 MiB is the default, and this model is small, so that 32 KiB are used here. The numbers must not change.


# %%
def train_with_packs():
    strategy = tfdist.create_strategy()
    _, at_once = train(strategy, options=None, epochs=4)
    _, in_packs = train(strategy, AllReduceOptions(bytes_per_pack=32 << 10), epochs=4)
    return at_once["loss"], in_packs["loss"]


at_once, in_packs = tfdist.notebook.run(train_with_packs, workers=2)

# %%
import numpy as np

difference = np.max(np.abs(np.subtract(at_once, in_packs)) / at_once)
print(f"largest relative difference of the loss: {difference:.1e}")
assert difference < 1e-3

# %% [markdown]
# ## Compression
#
# Compression sends fewer bytes, and changes the numbers. Three kinds are tried:
#
# | name | what is sent |
# | --- | --- |
# | `fp16` | each number in two bytes instead of four |
# | `topk:0.05` | the largest twentieth of the numbers of each gradient, with their positions |
# | `powersgd:2` | two thin matrices, whose product is an approximation of the gradient |
#
# What `topk` and `powersgd` do not send is kept on the worker, and is added to its next gradient.

# %%
COMPRESSIONS = ("none", "fp16", "topk:0.05", "powersgd:2")


def train_with_compression():
    strategy = tfdist.create_strategy()
    found = {}
    for name in COMPRESSIONS:
        model, history = train(strategy, AllReduceOptions(compression=name), epochs=10)
        traffic = gradient_traffic(model.optimizer)
        found[name] = {
            "accuracy": history["val_accuracy"],
            "sent": traffic.sent,
            "uncompressed": traffic.uncompressed,
            "steps": traffic.steps,
        }
        print(f"{name}: held-out accuracy {history['val_accuracy'][-1]:.4f}")
    return found


found = tfdist.notebook.run(train_with_compression, workers=2)

# %% [markdown]
# ## Bytes and accuracy
#
# `gradient_traffic` counts the bytes of gradients that a worker sends under compression. It does not count without
# compression, so that the first bar is the number of bytes that the same gradients take uncompressed.

# %%
import matplotlib.pyplot as plt

found["none"]["sent"] = found["fp16"]["uncompressed"]
megabytes = {name: values["sent"] / 1e6 for name, values in found.items()}
accuracy = {name: values["accuracy"][-1] for name, values in found.items()}
colours = dict(zip(COMPRESSIONS, ("tab:gray", "tab:blue", "tab:orange", "tab:green"), strict=True))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
bars = left.barh(COMPRESSIONS, list(megabytes.values()), color=list(colours.values()))
left.bar_label(bars, [f"{value:.1f} MB" for value in megabytes.values()], padding=4)
left.set(title="Gradients that a worker sends in 10 epochs", xlabel="MB", xlim=(0, 1.2 * megabytes["none"]))
left.invert_yaxis()
for name, values in found.items():
    width = 6 if name == "none" else 1.5
    right.plot(
        range(2, 11, 2), values["accuracy"], "o-", markersize=4, linewidth=width, color=colours[name], label=name
    )
right.set(title="Held-out accuracy", xlabel="epoch")
right.legend(frameon=False)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
for name in COMPRESSIONS:
    ratio = megabytes["none"] / megabytes[name]
    print(f"{name}: {megabytes[name]:.2f} MB, {ratio:.1f} times fewer bytes, accuracy {accuracy[name]:.4f}")

# %% [markdown]
# The accuracies differ by a few hundredths at most on this small problem. That says nothing about yours: compare the
# accuracy with that of uncompressed training before you rely on compression.

# %%
assert megabytes["none"] > megabytes["fp16"] > megabytes["powersgd:2"]
assert min(accuracy.values()) > accuracy["none"] - 0.06

# %% [markdown]
# ## What next?
#
# `docs/communication.md` describes all options, and how to write a compressor of your own. It also shows how to measure
# the speed of your network: `tfdist launch --workers 2 -m tfdist.bench allreduce`.
