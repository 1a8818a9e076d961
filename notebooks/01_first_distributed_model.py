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
# # How do I train one Keras model on several devices and processes?
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tfdist/tfdist/blob/main/notebooks/01_first_distributed_model.ipynb)
#
# You train the same model three times: on one device, on two devices, and on two processes. The numbers stay the same.
# The notebook needs no GPU and takes less than a minute.

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
# ## The data
#
# The data are 1,797 handwritten digits, which come with scikit-learn. 1,400 of them are for training.

# %%
from sklearn.datasets import load_digits

digits = load_digits()
images = digits.images[..., None].astype("float32") / 16
labels = digits.target
images.shape, labels.shape

# %% [markdown]
# ## The program
#
# This is a usual Keras program. Only one thing is special: the model is made in `strategy.scope()`. `batch_size` is the
# *global* batch, the number of rows that all devices together use for one step. The program computes in float64, in
# which a difference by rounding is far smaller than any other difference.


# %%
def train(strategy):
    tf.keras.backend.set_floatx("float64")
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((8, 8, 1)),
                tf.keras.layers.Conv2D(16, 3, activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            tf.keras.optimizers.Adam(0.01),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(images[:1400], labels[:1400], batch_size=64, epochs=10, verbose=0)
    loss, accuracy = model.evaluate(images[1400:], labels[1400:], verbose=0)
    print(f"replicas: {strategy.num_replicas_in_sync}, held-out accuracy {accuracy:.4f}, loss {loss:.4f}")
    return history.history["loss"]


# %% [markdown]
# ## The strategies
#
# A strategy says which devices are used. TensorFlow divides the CPU when it starts, so both strategies are made before
# the first training. `devices=2` uses two GPUs, or divides the CPU into two devices where there is no GPU.

# %%
two_devices = tfdist.create_strategy("mirrored", devices=2)
one_device = tfdist.create_strategy("one_device")

# %% [markdown]
# ## One device

# %%
loss_of_one_device = train(one_device)

# %% [markdown]
# ## Two devices
#
# Each of the two devices holds a copy of the model, which is called a *replica*. It computes the gradients of 32 rows
# of each batch. The sum of both gradients updates both copies.

# %%
loss_of_two_devices = train(two_devices)

# %% [markdown]
# ## Two processes
#
# `tfdist.notebook.run` starts two new Python processes, which are called *workers*, and calls a function on both. In
# them, `create_strategy` finds the other worker by itself. The cell shows the lines of both workers, and returns what
# the first one, the *chief*, returned. On two machines, the same program would run in one process on each.


# %%
def train_on_workers():
    return train(tfdist.create_strategy())


loss_of_two_workers = tfdist.notebook.run(train_on_workers, workers=2)

# %% [markdown]
# ## The numbers are the same
#
# The three loss curves lie on each other. Their difference is rounding: a sum of floating-point numbers in another
# order has another last digit. In float32, the usual type, the differences are larger, and grow with each step.

# %%
import matplotlib.pyplot as plt
import numpy as np

one, two, workers = map(np.array, (loss_of_one_device, loss_of_two_devices, loss_of_two_workers))
epochs = np.arange(1, len(one) + 1)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.plot(epochs, one, color="tab:gray", linewidth=6, alpha=0.5, label="one device")
left.plot(epochs, two, color="tab:blue", label="two devices")
left.plot(epochs, workers, "o", color="tab:orange", markersize=4, label="two processes")
left.set(title="Loss", xlabel="epoch", ylabel="mean loss of the epoch", ylim=(0, None))
left.legend(frameon=False)

right.plot(epochs, np.abs(two - one) / one, "s", color="tab:blue", markersize=7, clip_on=False, label="two devices")
right.plot(
    epochs, np.abs(workers - one) / one, "o", color="tab:orange", markersize=4, clip_on=False, label="two processes"
)
right.set(title="Relative difference to one device", xlabel="epoch", ylim=(0, None))
right.legend(frameon=False)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
difference = max(np.max(np.abs(other - one) / one) for other in (two, workers))
print(f"largest relative difference: {difference:.1e}")
assert difference < 1e-9

# %% [markdown]
# ## What next?
#
# | question | where |
# | --- | --- |
# | How do I start a program on several machines? | `docs/tutorial.md` |
# | How does each worker read only its part of my files? | notebook `03_input_from_files` |
# | What happens if a worker dies? | notebook `06_survive` |
