"""Two workers whose models have other weights raise the same error; weights that may differ are no disagreement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import launch

# Every attempt ends on both workers, so that one pair of processes makes all of them, one after another.
PROGRAM = """
import json, os
import tfdist
from tfdist.averaging import DPSGD, ElasticAverage, LocalSGD
from tfdist.checkpoint import AutoResume

strategy = tfdist.create_strategy(startup_timeout_seconds=60)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
import numpy as np
import tensorflow as tf

keras = tf.keras
keras.utils.set_random_seed(1)
X, Y = np.random.RandomState(0).normal(size=[16, 4]).astype("float32"), np.ones([16, 1], "float32")


def make(*layers, optimizer=None, dtype=None, has_input=True):
    with strategy.scope():
        own = [keras.layers.Dense(3, dtype=dtype, name="first"), *layers, keras.layers.Dense(1, dtype=dtype)]
        model = keras.Sequential([*([keras.layers.Input((4,))] if has_input else []), *own])
        model.compile(optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    return model


def differing(model, change=lambda w: w + 0.5, on=0):
    if rank == on:
        model.set_weights([change(w) for w in model.get_weights()])
    return model


def train(model, x=X, **options):
    options = {"epochs": 1, **options}
    return model.fit(x, Y, batch_size=8, shuffle=False, verbose=0, **options)


def use(model, **options):
    train(model, **options)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    model.train_on_batch(X, Y)
    train(model, validation_data=(X, Y), **options)


def loaded_by_the_chief():
    model = make()
    if rank == 0:
        np.savez("weights.npz", *[np.ones(w.shape) for w in model.get_weights()])
        with np.load("weights.npz") as file:
            model.set_weights([file[name] for name in file.files])
    return model


def frozen():
    model = make()
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    return differing(model)


def fitted():
    model = make()
    train(model)
    return model


class State(keras.layers.Layer):
    # Numbers that belong to the worker.
    def build(self, shape):
        super().build(shape)
        for dtype in ("float32", "int32"):
            self.add_weight(name=dtype, shape=(2,), dtype=dtype, initializer="zeros", trainable=False)

    def call(self, x):
        return x


class Broadcast(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.set_weights([np.full(w.shape, 0.25) for w in self.model.get_weights()])


def after_a_batch():
    model = make()
    model.train_on_batch(X, Y)
    differing(model).train_on_batch(X, Y)


def callbacks_of_a_loop():
    model = make()
    if rank == 0:
        keras.callbacks.CallbackList([], model=model).on_train_begin()


def normalized():
    layer = keras.layers.Normalization()
    with strategy.scope():
        layer.build((None, 4))
    layer.adapt(X + rank)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    train(model)


def sgd():
    return keras.optimizers.SGD(0.1)


def local():
    return LocalSGD(sgd(), every=3)


def resumed():
    train(make(), epochs=2, callbacks=[AutoResume("snapshots", every_steps=1)])
    train(make(), epochs=4, callbacks=[AutoResume("snapshots", every_steps=1)])


def averaged(optimizer):
    use(make(keras.layers.BatchNormalization(), optimizer=optimizer))


def with_a_number_of_its_own():
    model = make()
    model.number = tf.Variable(float(rank), trainable=False)
    use(model)


def of_two_models():
    first, second = make(), make()
    train(first)
    train(second)
    use(first)


nan = lambda w: w * np.nan
attempts = {
    "fit": lambda: train(differing(make())),
    "fit of worker 1": lambda: train(differing(make(), on=1)),
    "loaded by the chief": lambda: train(loaded_by_the_chief()),
    "evaluate": lambda: differing(make()).evaluate(X, Y, verbose=0),
    "predict": lambda: differing(make()).predict(X, verbose=0),
    "train_on_batch": lambda: differing(make()).train_on_batch(X, Y),
    "test_on_batch": lambda: differing(make()).test_on_batch(X, Y),
    "frozen": lambda: train(frozen()),
    "after fit": lambda: train(differing(fitted())),
    "nan on one": lambda: train(differing(make(), nan)),
    "mixed": lambda: train(differing(make(dtype="mixed_bfloat16"))),
    "float16": lambda: train(differing(make(dtype="float16"))),
    "float64": lambda: train(differing(make(dtype="float64"))),
    "before local steps": lambda: train(differing(make(optimizer=local))),
    "methods": lambda: make().predict(X, verbose=0) if rank else make().evaluate(X, Y, verbose=0),
    # What has to be silent.
    "ordinary": lambda: use(make(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))),
    "nan on both": lambda: use(differing(differing(make(), nan), nan, on=1)),
    "other rounding": lambda: use(differing(make(), lambda w: w * (1 + 1e-5))),
    "other rounding of float16": lambda: train(differing(make(dtype="float16"), lambda w: w * 1.005)),
    "state": lambda: use(differing(make(State()), lambda w: w + 1 if w.shape == (2,) else w)),
    "not built": lambda: use(make(has_input=False)),
    "LocalSGD": lambda: averaged(local),
    "elastic": lambda: averaged(lambda: LocalSGD(sgd(), every=3, outer=ElasticAverage(rate=0.1))),
    "DPSGD": lambda: averaged(lambda: DPSGD(sgd())),
    "broadcast by a callback": lambda: train(differing(make()), callbacks=[Broadcast()]),
    "after a batch": after_a_batch,
    "callbacks of a loop": callbacks_of_a_loop,
    "normalized": normalized,
    "resumed": resumed,
    "own number": with_a_number_of_its_own,
    "two models": of_two_models,
}
messages = {}
for name, attempt in attempts.items():
    try:
        attempt()
        messages[name] = ""
    except Exception as error:
        messages[name] = f"{type(error).__name__}: {error}"
with open(f"result-{rank}", "w") as file:
    json.dump(messages, file)
"""

RECEIVED = "ValueError: expected the same training on all workers, received: "
DO = "; load or set the weights on every worker, not only on one."
ALL = "first/kernel (4, 3) and of 3 more variables"
VARIABLES = {
    "fit": ALL,
    "fit of worker 1": ALL,
    "loaded by the chief": ALL,
    "evaluate": ALL,
    "predict": ALL,
    "train_on_batch": ALL,
    "test_on_batch": ALL,
    "frozen": ALL,
    "after fit": ALL,
    "nan on one": ALL,
    "mixed": ALL,
    "float16": ALL,
    "float64": ALL,
    "before local steps": ALL,
}
SILENT = (
    "ordinary",
    "nan on both",
    "other rounding",
    "other rounding of float16",
    "state",
    "not built",
    "LocalSGD",
    "elastic",
    "DPSGD",
    "broadcast by a callback",
    "after a batch",
    "callbacks of a loop",
    "normalized",
    "resumed",
    "own number",
    "two models",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "program.py").write_text(PROGRAM)
    program = launch("--workers", "2", "--", "program.py", cwd=folder, deadline_seconds=400)
    (folder / "output").write_text(program.text)
    assert program.code == 0
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, str]]:
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", VARIABLES)
def test_both_workers_are_told_which_variable_has_other_values(results: list[dict[str, str]], name: str) -> None:
    for messages in results:
        text = messages[name].replace("sequential/", "")
        assert text == f"{RECEIVED}worker 1 has other values of the variable {VARIABLES[name]} than worker 0{DO}"


def test_a_worker_that_predicts_while_another_evaluates_is_named(results: list[dict[str, str]]) -> None:
    expected = f"{RECEIVED}worker 1 calls predict, worker 0 calls evaluate."
    assert [messages["methods"] for messages in results] == [expected] * 2


@pytest.mark.parametrize("name", SILENT)
def test_weights_that_may_differ_and_equal_weights_are_no_disagreement(
    results: list[dict[str, str]], name: str
) -> None:
    assert [messages[name] for messages in results] == ["", ""]


def test_a_layer_that_is_adapted_to_other_data_is_a_line_of_the_log(folder: Path) -> None:
    expected = "expected the same adapted layers on all workers, received: worker 1 has other values of the variable"
    assert expected in (folder / "output").read_text()
