"""Optimizers that are written to configs, model files and checkpoints, and read again."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.cases import ALL, compiled, rows, stepped, variables
from tfdist.keras_compat import keras_in_use
from tfdist.optimizers import LAMB, LARS, LinearWarmup, MomentumCorrectedSGD


def everything(kind):
    """Returns an optimizer in which every option differs from its default."""
    options = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"], "clipnorm": 2.0}
    if kind is not MomentumCorrectedSGD:
        options |= {"exclude_from_adaptation": [], "min_trust_ratio": 0.1, "max_trust_ratio": 5.0}
    if kind is LAMB:
        options |= {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-4, "bias_correction": False}
    else:
        options |= {"momentum": 0.8, "nesterov": True}
    if kind is LARS:
        options |= {"eeta": 0.01, "epsilon": 0.1, "classic_momentum": False}
    return kind(LinearWarmup(0.1, 5, start=0.2), name="mine", **options)


@ALL
def test_a_config_holds_every_option(kind):
    config = everything(kind).get_config()
    again = kind.from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    default = kind().get_config()
    same = {key for key, value in config.items() if key in default and default[key] == value}
    # `everything` does not set these options, which every optimizer of Keras has.
    assert same <= {
        "ema_momentum",
        "ema_overwrite_frequency",
        "global_clipnorm",
        "clipvalue",
        "gradient_accumulation_steps",
        "is_legacy_optimizer",
        "jit_compile",
        "loss_scale_factor",
        "use_ema",
    }


@ALL
def test_keras_reads_an_optimizer_by_its_registered_name(kind):
    made = everything(kind)
    again = tf.keras.optimizers.deserialize(tf.keras.optimizers.serialize(made))
    assert type(again) is kind
    assert again.get_config() == made.get_config()


@ALL
def test_a_checkpoint_of_a_custom_training_loop_holds_the_step_count(kind, tmp_path):
    held, optimizer = variables(w=[1.0, 2.0]), kind(0.1)
    for _ in range(2):
        stepped(optimizer, held, [tf.constant([1.0, 1.0])])
        path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    assert any("iteration" in name for name, _ in tf.train.list_variables(path))


# Each optimizer once, and each form.
IN_CORE = {("keras", LARS), ("checkpoint", LAMB), ("keras", MomentumCorrectedSGD)}


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        pytest.param(form, kind, marks=() if (form, kind) in IN_CORE else pytest.mark.full)
        for form in ("keras", "checkpoint")
        for kind in (LAMB, LARS, MomentumCorrectedSGD)
    ],
)
def test_training_continues_from_a_file_as_if_it_had_not_stopped(kind, form, tmp_path):
    x, y = rows()
    whole, first = compiled(everything(kind)), compiled(everything(kind))
    whole.fit(x, y, epochs=4, shuffle=False, batch_size=8, verbose=0)
    first.fit(x, y, epochs=2, shuffle=False, batch_size=8, verbose=0)
    if form == "keras":
        first.save(tmp_path / "model.keras")
        second = tf.keras.models.load_model(tmp_path / "model.keras")
    else:
        path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "checkpoint"))
        second = compiled(everything(kind))
        second.optimizer.build(second.trainable_variables)
        tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(path).assert_consumed()
    assert int(second.optimizer.iterations) == 8
    second.fit(x, y, epochs=2, shuffle=False, batch_size=8, verbose=0)
    for one, other in zip(second.get_weights(), whole.get_weights(), strict=True):
        assert np.array_equal(one, other)


def test_a_config_of_addons_is_read():
    config = {
        "name": "LAMB",
        "learning_rate": 0.01,
        "decay": 0.0,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-6,
        "weight_decay_rate": 0.1,
        "exclude_from_weight_decay": ["bias"],
        "exclude_from_layer_adaptation": [],
    }
    read = LAMB.from_config(config)
    assert read.weight_decay == 0.1
    # For an empty list, TensorFlow Addons uses the patterns of the decay.
    assert read.exclude_from_adaptation is None
    with pytest.raises(ValueError, match=r"^expected no decay of the learning rate in a config, received decay=0.1"):
        LAMB.from_config({**config, "decay": 0.1})


@ALL
def test_a_config_of_the_other_keras_is_read(kind):
    config = everything(kind).get_config()
    # `other` is the config with the options of the other Keras.
    theirs = {"loss_scale_factor": None, "gradient_accumulation_steps": None}
    ours = {"is_legacy_optimizer": False, "jit_compile": False}
    if keras_in_use().is_keras3:
        theirs, ours = ours, theirs
    other = {key: value for key, value in config.items() if key not in ours} | theirs
    assert kind.from_config(other).get_config() == config


@pytest.mark.skipif(keras_in_use().is_keras3, reason="Keras 3 has the option gradient_accumulation_steps")
@ALL
def test_an_option_that_keras_2_lacks_is_refused(kind):
    config = {**kind(0.1).get_config(), "gradient_accumulation_steps": 4}
    with pytest.raises(ValueError, match=r"^expected no gradient_accumulation_steps in a config, received 4"):
        kind.from_config(config)
