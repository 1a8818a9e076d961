"""What becomes of a DistributedOptimizer that is pickled, copied, or saved and loaded."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.optimizers.replicas import PREAMBLE, on_two_replicas
from tfdist import AllReduceOptions
from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.optimizers import LAMB, DistributedOptimizer

WRITER = """
import copy, dataclasses, logging, pickle
from tfdist.allreduce import Compression, ErrorFeedback, TopK
from tfdist.keras_compat.optimizers.hooked import hook_of

folder = sys.argv[3]
KEPT = {"all_reduce": AllReduceOptions(compression="fp16", bytes_per_pack=1000), "backward_passes_per_step": 2}
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("tfdist").addHandler(handler)

def wrapped(**options):
    return DistributedOptimizer(tf.keras.optimizers.SGD(0.05, momentum=0.9), **(options or KEPT))

def described(optimizer):
    hook = hook_of(optimizer)
    return None if hook is None else [repr(hook.path.asked), hook.passes]

def say_trained(key, optimizer):
    model = compiled(optimizer)
    model.fit(data(), epochs=2, verbose=0)
    say(key, [type(model.optimizer) is tf.keras.optimizers.SGD, described(model.optimizer), weights(model)])
    return model

def saved_and_loaded(name, optimizer):
    model = compiled(optimizer)
    # Keras 3 cannot read the name "mse" from an .h5 file.
    model.compile(optimizer, tf.keras.losses.MeanSquaredError())
    model.save(os.path.join(folder, name))
    return tf.keras.models.load_model(os.path.join(folder, name))

with strategy.scope():
    model = say_trained("itself", wrapped())
    say_trained("pickled", pickle.loads(pickle.dumps(wrapped())))
    say_trained("copied", copy.deepcopy(wrapped()))
    say("copied after training", described(copy.deepcopy(model.optimizer)))
    say("copied with its model", described(copy.deepcopy(model).optimizer))

    path = os.path.join(folder, "kept.keras")
    model.save(path)
    say("saved", weights(model))
    loaded = tf.keras.models.load_model(path)
    say("loaded", [type(loaded.optimizer) is tf.keras.optimizers.SGD, described(loaded.optimizer)])
    for key, one in {"went on": model, "loaded went on": loaded}.items():
        one.fit(data(), verbose=0)
        say(key, weights(one))
    say("traffic of loaded", gradient_traffic(loaded.optimizer).steps)

    say("topk", described(saved_and_loaded("topk.keras", wrapped(
        all_reduce=AllReduceOptions(compression=ErrorFeedback(TopK(0.02, warmup_steps=5))))).optimizer))
    say("h5", described(saved_and_loaded("model.h5", wrapped()).optimizer))

    @dataclasses.dataclass(frozen=True)
    class Own(Compression):
        part: int = 3
        def takes(self, shape):
            return False

    # A name that tfdist has too.
    OtherTopK = type("TopK", (Own,), {"__module__": "elsewhere"})
    del lines[:]
    for key, own in {"own": Own(), "inner": ErrorFeedback(Own()), "name": OtherTopK()}.items():
        optimizer = wrapped(all_reduce=AllReduceOptions(compression=own))
        say(f"own compression, {key}", described(saved_and_loaded("own.keras", optimizer).optimizer))
    say("lines", [line for line in lines if "wrap it again" in line])
"""

# First without tfdist, then under a strategy of one device.
READER = """
import json, sys
import numpy as np
import tensorflow as tf

def say(key, value):
    print("RESULT", json.dumps({"key": key, "value": value}), flush=True)

path = sys.argv[1] + "/kept.keras"
model = tf.keras.models.load_model(path)
assert "tfdist" not in sys.modules
say("plain", {
    "class": type(model.optimizer) is tf.keras.optimizers.SGD,
    "attributes": [name for name in vars(model.optimizer) if "tfdist" in name],
    "iterations": int(model.optimizer.iterations.numpy()),
    "weights": [np.asarray(w, "float64").ravel().tolist() for w in model.get_weights()],
})
import tfdist
with tfdist.create_strategy("one_device").scope():
    loaded = tf.keras.models.load_model(path)
from tfdist.keras_compat.optimizers.hooked import hook_of
hook = hook_of(loaded.optimizer)
say("one_device", None if hook is None else [repr(hook.path.asked), hook.passes])
"""

KEPT = [repr(AllReduceOptions(compression="fp16", bytes_per_pack=1000)), 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def said(module_children, folder):
    """What a process with two replicas said, which has also written the files."""
    (said,) = on_two_replicas(module_children, WRITER, folder, workers=1)
    return said


@pytest.fixture(scope="module")
def read(module_children, said, folder):
    """What another process said, which has read a file without tfdist, and then with it."""
    ended = module_children.run(READER, str(folder))
    assert ended.code == 0, ended.err
    lines = [json.loads(line.partition("RESULT ")[2]) for line in ended.out.splitlines() if "RESULT " in line]
    return {line["key"]: line["value"] for line in lines}


@pytest.mark.parametrize("key", ["pickled", "copied"])
def test_a_copy_trains_as_the_optimizer_itself(said, key):
    assert said["itself"][:2] == [True, KEPT]
    assert said[key] == said["itself"]


def test_a_copy_of_a_trained_optimizer_or_model_keeps_the_wrapping(said):
    assert said["copied after training"] == KEPT
    assert said["copied with its model"] == KEPT


def scaled():
    keras = tf.keras.optimizers if keras_in_use().is_keras3 else tf.keras.mixed_precision
    return keras.LossScaleOptimizer(tf.keras.optimizers.SGD())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
@pytest.mark.parametrize("make", [scaled, lambda: LAMB(0.01, weight_decay=0.1)], ids=["loss scale", "LAMB"])
def test_a_copy_without_any_strategy_keeps_the_wrapping(make, copied):
    all_reduce = AllReduceOptions(compression="powersgd:2")
    original = DistributedOptimizer(make(), all_reduce=all_reduce, backward_passes_per_step=3)
    hook = hook_of(copied(original))
    assert type(copied(original)) is type(make())
    assert hook is not hook_of(original)
    assert (hook.path.asked, hook.passes) == (all_reduce, 3)


def test_a_keras_file_keeps_the_wrapping(said):
    assert said["loaded"] == [True, KEPT]
    assert said["loaded went on"] == said["went on"]
    # Four batches, two passes a step.
    assert said["traffic of loaded"] == 2


def test_a_keras_file_keeps_the_options_of_a_compression(said):
    compression = "ErrorFeedback(inner=TopK(density=0.02, warmup_steps=5))"
    assert said["topk"] is not None
    assert f"compression={compression}" in said["topk"][0]


def test_an_h5_file_does_not_keep_the_wrapping(said):
    assert said["h5"] is None


def test_a_compression_of_the_users_own_is_not_restored_and_a_warning_says_so(said):
    assert [said[f"own compression, {key}"] for key in ("own", "inner", "name")] == [None] * 3
    assert len(said["lines"]) == 3
    assert all("DistributedOptimizer" in line for line in said["lines"])


def test_stock_keras_reads_the_same_file(said, read):
    plain = read["plain"]
    assert plain["class"]
    assert plain["attributes"] == []
    assert plain["iterations"] == 4
    assert plain["weights"] == said["saved"]


def test_one_device_reads_the_wrapping_too(read):
    assert read["one_device"] == KEPT


@pytest.mark.parametrize("make", [lambda: tf.keras.optimizers.Adam(0.01), lambda: LAMB(0.01, weight_decay=0.1)])
def test_it_is_saved_as_what_it_was(make, tmp_path):
    rows = np.ones((4, 3), np.float32)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((3,)), layers.Dense(1)])
    plain, optimizer = make(), make()
    assert DistributedOptimizer(optimizer) is optimizer
    assert isinstance(optimizer, type(plain))
    one, other = (tf.keras.optimizers.serialize(each) for each in (optimizer, plain))
    # Keras counts the names of optimizers.
    one["config"]["name"] = other["config"]["name"]
    assert one == other
    model.compile(optimizer, "mse")
    model.fit(rows, rows[:, :1], epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(plain)
    assert int(loaded.optimizer.iterations.numpy()) == 3
    # Its variables are those of the plain one, with their values.
    for one, other in zip(loaded.optimizer.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_a_model_of_a_strategy_that_compresses_is_compiled_when_it_is_loaded(four_cpus, no_surroundings, tmp_path):
    strategy = tfdist.create_strategy("mirrored", devices=2, all_reduce=AllReduceOptions(compression="fp16"))
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    rows = np.ones((4, 3), np.float32)
    loaded.fit(rows, rows[:, :1], verbose=0)
    assert int(loaded.optimizer.iterations.numpy()) == 1


@pytest.mark.skipif(keras_in_use().is_keras3, reason="Keras 3 has no legacy optimizers")
def test_legacy_optimizers_too(children, tmp_path):
    program = PREAMBLE + (
        "with strategy.scope():\n"
        "    model = make('topk:0.05', tf.keras.optimizers.legacy.SGD(0.05))\n"
        "    model.fit(data(), verbose=0)\n"
        "    print('STEPS', gradient_traffic(model.optimizer).steps)\n"
        "    path = tf.train.Checkpoint(optimizer=model.optimizer).save(sys.argv[3])\n"
        "    print('KEPT', [name for name, _ in tf.train.list_variables(path) if 'residual0' in name])\n"
        "    model.save(sys.argv[3] + '-saved', save_format='tf')\n"
    )
    finished = children.run(program, "mirrored", "2", str(tmp_path / "files"))
    assert finished.code == 0, finished.err
    assert "STEPS 4" in finished.out
    assert "KEPT ['optimizer/_tfdist_hook/path/_variables/residual0/.ATTRIBUTES/values']" in finished.out
