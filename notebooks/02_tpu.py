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
# # How do I train on a TPU?
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tfdist/tfdist/blob/main/notebooks/02_tpu.ipynb)
#
# One line chooses the TPU. **This notebook has not been run on a TPU:** none was available to this project. What you
# see below is what a machine without a TPU shows: tfdist says where it looked for a TPU, and then the same program runs
# on eight devices of the CPU, as many as a TPU board has cores.

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
# ## Which software does a TPU need?
#
# TensorFlow finds a TPU of its own machine, a TPU VM or Colab with a TPU, only if the package `tensorflow-tpu` is
# installed. Its last release on PyPI was 2.20 when this was written, which tfdist supports.
# Colab installs no TensorFlow in its TPU sessions. So expect the cell under "Look for a TPU" to say there that
# connecting has failed.
#
# A TPU that you reach by its name or address needs no such package: `tfdist.create_strategy("tpu",
# tpu="grpc://host:port")` connects to it.

# %% [markdown]
# ## The program
#
# A program for a TPU needs batches of one fixed size, so the rows that do not fill a batch are left out
# (`drop_remainder=True`). 128 rows are divided by 8 cores. Nothing else is special.

# %%
from sklearn.datasets import load_digits

digits = load_digits()
images = digits.data.astype("float32") / 16
labels = digits.target.astype("int32")


def train(strategy):
    tf.keras.utils.set_random_seed(1)
    data = tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400])).batch(128, drop_remainder=True)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((64,)),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            tf.keras.optimizers.SGD(0.1, momentum=0.9),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(data, epochs=10, shuffle=False, verbose=0)
    return history.history["loss"], history.history["accuracy"]


# %% [markdown]
# ## Look for a TPU
#
# `create_strategy("tpu")` looks for a TPU, connects to it, and initializes it. Without a TPU it refuses, and names
# every place where it looked.

# %%
try:
    tpu = tfdist.create_strategy("tpu")
except RuntimeError as refusal:
    tpu = None
    print(refusal)

# %% [markdown]
# ## Train on the TPU, if there is one

# %%
if tpu is None:
    print("There is no TPU, so nothing is trained in this cell.")
else:
    loss_of_tpu, accuracy_of_tpu = train(tpu)
    print(f"{tpu.num_replicas_in_sync} cores: loss {loss_of_tpu[-1]:.4f}, accuracy {accuracy_of_tpu[-1]:.4f}")

# %% [markdown]
# ## The same program on eight devices of the CPU
#
# `mirrored` keeps a copy of the model on each device and adds their gradients, as the TPU strategy does on its cores.
# Each device gets 16 of the 128 rows. The program runs in a new process, so that it does not matter what this notebook
# has done with TensorFlow before.


# %%
def train_on_eight_devices():
    strategy = tfdist.create_strategy("mirrored", devices=[f"CPU:{number}" for number in range(8)])
    print(f"{strategy.num_replicas_in_sync} replicas")
    return train(strategy)


loss_of_eight, accuracy_of_eight = tfdist.notebook.run(train_on_eight_devices, workers=1)

# %% [markdown]
# ## The same program on one device

# %%
loss_of_one, accuracy_of_one = train(tfdist.create_strategy("one_device"))

# %% [markdown]
# Both trainings compute the same numbers, up to rounding.

# %%
import matplotlib.pyplot as plt
import numpy as np

epochs = range(1, len(loss_of_one) + 1)
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
axis.plot(epochs, loss_of_one, color="tab:gray", linewidth=6, alpha=0.5, label="one device")
axis.plot(epochs, loss_of_eight, "o-", color="tab:blue", markersize=4, label="eight devices")
axis.set(title="Loss", xlabel="epoch", ylabel="mean loss of the epoch", ylim=(0, None))
axis.spines[["top", "right"]].set_visible(False)
axis.legend(frameon=False)
plt.show()

# %%
difference = np.max(np.abs(np.subtract(loss_of_eight, loss_of_one)) / loss_of_one)
print(f"one device:    accuracy {accuracy_of_one[-1]:.4f}")
print(f"eight devices: accuracy {accuracy_of_eight[-1]:.4f}")
print(f"largest relative difference of the loss: {difference:.1e}")
assert difference < 1e-3

# %% [markdown]
# ## What next?
#
# `docs/strategies.md` lists the places where tfdist looks for a TPU, and all other strategies.
