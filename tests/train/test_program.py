"""The optimizer that `tfdist train` makes from its flags."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from tfdist.flags import define_flags
from tfdist.train import program


@pytest.mark.parametrize(("steps", "passes", "epochs"), [(3, 1, 20), (3, 2, 20), (5, 2, 20), (1, 2, 20), (7, 4, 8)])
def test_a_decay_ends_with_the_last_update(steps, passes, epochs):
    values = flags.FlagValues()
    define_flags(flag_values=values)
    values(
        [
            "train",
            "--optimizer=lars",
            "--learning_rate=0.1",
            "--learning_rate_decay=linear",
            "--warmup_epochs=2",
            f"--epochs={epochs}",
            f"--backward_passes_per_step={passes}",
        ]
    )
    schedule = program._optimizer(values, steps)._learning_rate
    # The passes are counted over all epochs, not anew in each epoch.
    updates = epochs * steps // passes
    rates = [float(schedule(tf.constant(step, tf.int64))) for step in range(updates + 1)]
    assert rates[-2] == pytest.approx(0.1 / updates, rel=1e-3)
    assert rates[-1] == pytest.approx(0.0, abs=1e-7)
    warmup = 2 * steps / passes
    assert schedule.warmup_steps == pytest.approx(warmup, abs=0.5)


def test_a_decay_ends_with_the_last_of_the_steps():
    values = flags.FlagValues()
    define_flags(flag_values=values)
    values(["train", "--learning_rate=0.1", "--learning_rate_decay=linear", "--steps=50"])
    schedule = program._optimizer(values, 22)._learning_rate
    rates = [float(schedule(tf.constant(step, tf.int64))) for step in (0, 25, 50)]
    assert rates == pytest.approx([0.1, 0.05, 0.0], abs=1e-7)


@pytest.mark.parametrize(
    ("argv", "rate"),
    [
        ([], 1e-3),
        (["--global_batch_size=1024"], 1e-3),
        (["--global_batch_size=1024", "--learning_rate_scaling=linear"], 4e-3),
        (["--global_batch_size=1024", "--learning_rate_scaling=auto", "--base_batch_size=64"], 4e-3),
        (["--global_batch_size=512", "--learning_rate_scaling=linear", "--backward_passes_per_step=2"], 4e-3),
    ],
)
def test_the_learning_rate_is_scaled_only_if_a_flag_asks_for_it(argv, rate):
    values = flags.FlagValues()
    define_flags(flag_values=values)
    values(["train", *argv])
    assert float(np.asarray(program._optimizer(values, 10).learning_rate)) == pytest.approx(rate)
