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
# # How do I train with parameter servers?
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tfdist/tfdist/blob/main/notebooks/07_parameter_servers.ipynb)
#
# A parameter server holds the variables of the model. A coordinator runs the program and sends steps to workers, which
# make them independently of each other. You start all of them from this notebook. It needs no GPU and takes less than a
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
# ## When are parameter servers useful?
#
# | | workers that wait for each other (the other notebooks) | parameter servers |
# | --- | --- | --- |
# | a slow worker | holds up all others | makes fewer steps; the others go on |
# | variables | each worker has all of them | on one or more servers |
# | numbers | those of one device | differ from run to run |

# %% [markdown]
# ## The program
#
# The program is the same as for one device. `create_strategy` returns on the coordinator only: the workers and the
# parameter server serve it until it is done. A batch is the step of *one* worker.

# %%
from sklearn.datasets import load_digits

digits = load_digits()
images = digits.data.astype("float32") / 16
labels = digits.target


def train(strategy):
    tf.keras.utils.set_random_seed(1)
    data = tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400])).shuffle(1400, seed=1).batch(64)
    test = tf.data.Dataset.from_tensor_slices((images[1400:], labels[1400:])).batch(64)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((64,)),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            tf.keras.optimizers.Adam(0.005),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(data, epochs=10, shuffle=False, verbose=0)
    accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
    steps = int(model.optimizer.iterations.numpy())
    print(f"held-out accuracy {accuracy:.4f} after {steps} steps")
    return {"loss": history.history["loss"], "accuracy": accuracy, "steps": steps}


# %% [markdown]
# ## Start a coordinator, two workers and a parameter server
#
# `ps=1` adds a parameter server, and a coordinator, whose name is `chief 0`. The notebook receives what the coordinator
# returns.


# %%
def train_with_parameter_server():
    strategy = tfdist.create_strategy()
    return train(strategy)


servers = tfdist.notebook.run(train_with_parameter_server, workers=2, ps=1)

# %% [markdown]
# ## Compare with one device
#
# Both make 220 steps: 22 batches in each of 10 epochs. Each batch was used once in an epoch, by either worker. The
# losses differ, because a worker computes gradients while the other one changes the variables.

# %%
one = train(tfdist.create_strategy("one_device"))

# %%
import matplotlib.pyplot as plt

epochs = range(1, 11)
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
axis.plot(epochs, one["loss"], "o-", markersize=4, color="tab:gray", label="one device")
axis.plot(epochs, servers["loss"], "o-", markersize=4, color="tab:blue", label="two workers, one parameter server")
axis.set(title="Loss", xlabel="epoch", ylabel="mean loss of the epoch", ylim=(0, None))
axis.spines[["top", "right"]].set_visible(False)
axis.legend(frameon=False)
plt.show()

# %%
assert servers["steps"] == one["steps"] == 220
assert servers["accuracy"] > 0.85

# %% [markdown]
# ## What next?
#
# `docs/strategies.md` describes parameter servers further, and `examples/parameter_servers.py` is the program for
# `tfdist launch`.
