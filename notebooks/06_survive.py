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
# # What happens if a worker dies in the middle of a training?
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tfdist/tfdist/blob/main/notebooks/06_survive.ipynb)
#
# You train on two workers, kill one of them in the middle, watch the training go on, and compare the weights with those
# of a training that nobody disturbed. The notebook needs no GPU and takes about a minute.

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
# `AutoResume` is the only addition to a usual Keras program. It keeps snapshots of the training. When the program
# starts again, `fit` goes on with the batch after the newest snapshot.

# %%
from sklearn.datasets import load_digits

from tfdist.checkpoint import AutoResume
from tfdist.workers import worker_index

digits = load_digits()
images = digits.data.astype("float32") / 16
labels = digits.target


def train(name, kill):
    strategy = tfdist.create_strategy()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((64,)),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dropout(0.3),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            tf.keras.optimizers.Adam(0.002),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    resume = AutoResume(f"snapshots-{name}", every_steps=50)
    watch = Watch(name, worker_index(strategy), kill=kill)
    model.fit(images[:1400], labels[:1400], batch_size=64, epochs=20, verbose=0, callbacks=[watch, resume])
    return model.get_weights()


# %% [markdown]
# ## The accident
#
# This callback writes down when each step ended. At step 220 it kills worker 1, the first time only. SIGKILL cannot be
# caught: no line of the program runs after it, as when the machine loses its power.

# %%
import pathlib
import signal
import time


class Watch(tf.keras.callbacks.Callback):
    def __init__(self, name, worker, kill):
        super().__init__()
        self.name, self.worker, self.kill = name, worker, kill

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        with open(f"{self.name}-steps-of-worker-{self.worker}.txt", "a") as file:
            print(time.time(), step, file=file)
        killed = pathlib.Path(f"{self.name}-was-killed")
        if self.kill and self.worker == 1 and step == 220 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


# %% [markdown]
# ## A training that nobody disturbs

# %%
undisturbed = tfdist.notebook.run(train, args=["undisturbed", False], workers=2)

# %% [markdown]
# ## A training whose worker is killed
#
# With `max_restarts=1`, all workers are started again once. For a program outside of a notebook, the same command is
# `tfdist launch --workers 2 --max-restarts 1 program.py`.

# %%
killed = tfdist.notebook.run(train, args=["killed", True], workers=2, max_restarts=1)

# %% [markdown]
# ## What happened?
#
# The picture shows the steps of both workers. Worker 1 dies at step 220, and worker 0 cannot go on without it. Both
# start again, and go on after the snapshot of step 200. The steps 201 to 220 are made twice.

# %%
import matplotlib.pyplot as plt
import numpy as np

steps = [np.loadtxt(f"killed-steps-of-worker-{worker}.txt") for worker in (0, 1)]
began = min(rows[0, 0] for rows in steps)

figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
for worker, (rows, colour) in enumerate(zip(steps, ("tab:gray", "tab:blue"), strict=True)):
    size = 7 if worker == 0 else 2.5
    axis.plot(rows[:, 0] - began, rows[:, 1], "o", color=colour, markersize=size, label=f"worker {worker}", mew=0)
dies = np.flatnonzero(np.diff(steps[1][:, 1]) < 0)[0]
death, back = steps[1][dies, 0] - began, steps[1][dies + 1, 0] - began
axis.axvspan(death, back, color="tab:red", alpha=0.1, linewidth=0)
axis.text((death + back) / 2, 230, "worker 1 is killed;\nboth start again", ha="center", va="center")
axis.set(title="Steps of both workers", xlabel="seconds", ylabel="step", ylim=(0, 460))
axis.spines[["top", "right"]].set_visible(False)
axis.legend(frameon=False, loc="lower right")
plt.show()

# %%
again = int(steps[1][dies + 1, 1])
print(f"worker 1 was killed at step {int(steps[1][dies, 1])}, and went on with step {again}")
assert again <= 220

# %% [markdown]
# ## The weights are the same
#
# They are not only close: every bit is equal. Dropout draws the same random numbers, too.

# %%
equal = [one.tobytes() == other.tobytes() for one, other in zip(undisturbed, killed, strict=True)]
print(f"{sum(equal)} of {len(equal)} weights are equal bit by bit")
assert all(equal)

# %% [markdown]
# ## What next?
#
# `docs/survive.md` says what is kept and where, what a preemption does, and what is not promised.
