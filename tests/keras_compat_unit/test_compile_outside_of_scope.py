"""A model that is made in the scope of a strategy, and compiled outside of it, trains as on one device."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.processes import launch
from tfdist import create_strategy
from tfdist.keras_compat.version import keras, keras_in_use

pytestmark = pytest.mark.skipif(not keras_in_use().is_keras3, reason="Keras 2's compile enters the scope")

BOUND = 1e-10
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 4))
Y = X.sum(axis=1, keepdims=True) + RANDOM.normal(size=(24, 1))


@pytest.fixture(autouse=True)
def _float64():
    before, policy = keras().config.floatx(), keras().config.dtype_policy()
    keras().config.set_floatx("float64")
    # Once a layer was made, the policy no longer follows floatx.
    keras().config.set_dtype_policy("float64")
    yield
    keras().config.set_floatx(before)
    keras().config.set_dtype_policy(policy)


def scope_of(name):
    return contextlib.nullcontext() if name is None else create_strategy(name, devices=2).scope()


def dense():
    return keras().Sequential([keras().layers.Input((4,)), keras().layers.Dense(1, kernel_initializer="ones")])


def results(model):
    """Returns what is the same on one device: the history of training, the evaluation, the weights, and the steps."""
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False).history
    evaluated = model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)
    return {
        **history,
        **{f"evaluated {name}": value for name, value in evaluated.items()},
        "weights": np.concatenate([np.ravel(one) for one in model.get_weights()]),
        "steps": int(model.optimizer.iterations.numpy()),
        "rate": float(model.optimizer.learning_rate.numpy()),
    }


def compiled_outside(name, options):
    with scope_of(name):
        model = dense()
    model.compile(**options())
    return results(model)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=BOUND, atol=BOUND, err_msg=name)


def schedule():
    return keras().optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)


OPTIONS = {
    "optimizer by name": lambda: {"optimizer": "sgd", "loss": "mse"},
    "adam by name": lambda: {"optimizer": "adam", "loss": "mse"},
    "schedule": lambda: {"optimizer": keras().optimizers.SGD(schedule()), "loss": "mse"},
    "slots": lambda: {"optimizer": keras().optimizers.Adam(0.05), "loss": "mse"},
    "average of weights": lambda: {
        "optimizer": keras().optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2),
        "loss": "mse",
    },
    "accumulated gradients": lambda: {
        "optimizer": keras().optimizers.SGD(0.05, gradient_accumulation_steps=2),
        "loss": "mse",
    },
    "loss scale": lambda: {
        "optimizer": keras().optimizers.LossScaleOptimizer(keras().optimizers.Adam(schedule())),
        "loss": "mse",
    },
    "metrics by name": lambda: {"optimizer": "sgd", "loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mse"]},
    "metrics": lambda: {
        "optimizer": "sgd",
        "loss": "mse",
        "metrics": [keras().metrics.MeanAbsoluteError(), "mse"],
        "weighted_metrics": [keras().metrics.RootMeanSquaredError()],
    },
    "steps per execution": lambda: {
        "optimizer": keras().optimizers.SGD(schedule()),
        "loss": "mse",
        "steps_per_execution": 3,
    },
}


@pytest.mark.parametrize(
    ("name", "options"),
    [*(("mirrored", one) for one in OPTIONS), *(("central_storage", one) for one in ("schedule", "slots", "metrics"))],
)
def test_training_has_the_numbers_of_one_device(name, options):
    assert_same(compiled_outside(name, OPTIONS[options]), compiled_outside(None, OPTIONS[options]))


def compiled_from_config(name):
    made = dense()
    made.compile(keras().optimizers.Adam(schedule()), "mse", metrics=[keras().metrics.MeanAbsoluteError()])
    with scope_of(name):
        model = dense()
    model.compile_from_config(made.get_compile_config())
    return results(model)


def loaded(name, path):
    made = dense()
    made.compile(keras().optimizers.Adam(schedule()), "mse", metrics=["mae"])
    made.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    made.save(path)
    with scope_of(name):
        model = keras().models.load_model(path)
    return results(model)


def recompiled_with_its_optimizer(name):
    with scope_of(name):
        model = dense()
        model.compile(keras().optimizers.Adam(schedule()), "mse")
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    model.compile(model.optimizer, "mae")
    return results(model)


def cloned(name):
    with scope_of(name):
        model = keras().models.clone_model(dense())
    model.compile(keras().optimizers.SGD(schedule()), "mse")
    return results(model)


def batches_of_a_loop(name):
    with scope_of(name):
        model = dense()
    model.compile(keras().optimizers.SGD(schedule()), "mse", metrics=[keras().metrics.MeanAbsoluteError()])
    logs = [model.train_on_batch(X[i : i + 8], Y[i : i + 8], return_dict=True) for i in (0, 8, 16)]
    return {key: [log[key] for log in logs] for key in logs[0]} | {"steps": int(model.optimizer.iterations.numpy())}


def two_optimizers(name):
    """Trains a model whose own compile keeps optimizers and metrics in attributes, as a GAN does."""

    class Two(keras().Model):
        def __init__(self):
            super().__init__()
            self.first = keras().layers.Dense(4, kernel_initializer="ones")
            self.second = keras().layers.Dense(1, kernel_initializer="ones")

        def call(self, inputs):
            return self.second(self.first(inputs))

        def compile(self, optimizer, other):
            super().compile(optimizer, "mse")
            self.other = other
            self.seen = keras().metrics.Mean(name="seen")

        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            for optimizer, layer in ((self.optimizer, self.first), (self.other, self.second)):
                variables = layer.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)
            self.seen.update_state(y)
            return {"seen": self.seen.result()}

    with scope_of(name):
        model = Two()
    rates = [keras().optimizers.schedules.ExponentialDecay(rate, 4, 0.5) for rate in (0.01, 0.02)]
    model.compile(keras().optimizers.SGD(rates[0]), keras().optimizers.SGD(rates[1], momentum=0.5))
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False).history
    weights = np.concatenate([np.ravel(one) for one in model.get_weights()])
    return {**history, "weights": weights, "steps": int(model.other.iterations.numpy())}


@pytest.mark.parametrize(
    "program", [compiled_from_config, recompiled_with_its_optimizer, cloned, batches_of_a_loop, two_optimizers]
)
def test_other_ways_to_compile_have_the_numbers_of_one_device(program):
    assert_same(program("mirrored"), program(None))


def test_a_loaded_model_has_the_numbers_of_one_device(tmp_path):
    assert_same(loaded("mirrored", tmp_path / "model.keras"), loaded(None, tmp_path / "model.keras"))


def test_variables_are_those_of_the_strategy_and_keep_their_places():
    strategy = create_strategy("mirrored", devices=2)
    with strategy.scope():
        model = dense()
    optimizer = keras().optimizers.Adam(0.25)
    optimizer.iterations.assign(7)
    before = list(optimizer.variables)
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer
    assert [id(one) for one in optimizer.variables] == [id(one) for one in before]
    with strategy.scope():
        optimizer.build(model.trainable_variables)
    for variable in [*optimizer.variables, *(one for metric in model.metrics for one in metric.variables)]:
        assert strategy.extended.variable_created_in_scope(variable.value)
    assert [int(optimizer.iterations.numpy()), float(optimizer.learning_rate.numpy())] == [7, 0.25]


def test_a_model_without_a_strategy_is_left_alone():
    create_strategy("mirrored", devices=2)
    model = dense()
    model.compile("sgd", "mse")
    assert type(model.optimizer.iterations.value).__name__ == "ResourceVariable"


def optimizer_that_trained():
    optimizer = keras().optimizers.SGD()
    other = dense()
    other.compile(optimizer, "mse")
    other.fit(X, Y, batch_size=8, verbose=0)
    return {"optimizer": optimizer}


def optimizer_of_another_strategy():
    with create_strategy("mirrored", devices=2).scope():
        return {"optimizer": keras().optimizers.SGD()}


def metric_that_counted():
    metric = keras().metrics.Mean()
    metric.update_state(3.0)
    return {"optimizer": "sgd", "metrics": [metric]}


def metric_of_another_strategy():
    with create_strategy("mirrored", devices=2).scope():
        return {"optimizer": "sgd", "metrics": {"mean": [keras().metrics.Mean()]}}


@pytest.mark.parametrize(
    ("options", "received"),
    [
        (optimizer_that_trained, r"(SGD|sgd)\w*, made and used outside of all scopes"),
        (optimizer_of_another_strategy, r"(SGD|sgd)\w*, made in the scope of another strategy"),
        (metric_that_counted, r"mean\w*, made and used outside of all scopes"),
        (metric_of_another_strategy, r"mean\w*, made in the scope of another strategy"),
    ],
)
def test_what_others_may_use_is_refused_before_the_first_step(options, received):
    with create_strategy("mirrored", devices=2).scope():
        model = dense()
    with pytest.raises(ValueError, match=rf"^expected the optimizer and the metrics .* received {received}; make it"):
        model.compile(loss="mse", **options())


def test_the_scope_of_another_strategy_is_refused():
    with create_strategy("mirrored", devices=2).scope():
        model = dense()
    with (
        create_strategy("mirrored", devices=2).scope(),
        pytest.raises(ValueError, match=r"^expected compile in the .* received it in the scope of another Mirrored"),
    ):
        model.compile("sgd", "mse")


WORKER = """
import json, sys
import numpy as np
import tensorflow as tf
import tfdist

keras = tf.keras
keras.config.set_floatx("float64")
name = sys.argv[1]
strategy = tfdist.create_strategy(name) if name != "none" else None
x = np.arange(96.0).reshape(24, 4) % 7 - 3
y = x.sum(axis=1, keepdims=True) + x[:, :1] ** 2


def dense():
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])


if strategy is None:
    model = dense()
else:
    with strategy.scope():
        model = dense()
rate = keras.optimizers.schedules.ExponentialDecay(0.02, 4, 0.5)
model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae", keras.metrics.MeanSquaredError()])
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
history = model.fit(data, epochs=2, verbose=0).history
weights = np.concatenate([np.ravel(one) for one in model.get_weights()]).tolist()
print("RESULT", json.dumps({**history, "weights": weights, "steps": int(model.optimizer.iterations)}), flush=True)
"""


def of_cluster(folder: Path, name: str, *arguments: str):
    (folder / "program.py").write_text(WORKER)
    ended = launch(*arguments, "--", "program.py", name, cwd=folder, deadline_seconds=150)
    assert ended.code == 0
    return [json.loads(line.split("RESULT ")[1]) for line in ended.text.splitlines() if "RESULT " in line]


@pytest.mark.parametrize(
    ("name", "arguments", "results"),
    [
        ("multi_worker_mirrored", ("--workers", "2"), 2),
        pytest.param("parameter_server", ("--workers", "1", "--ps", "1"), 1, marks=pytest.mark.full),
    ],
)
def test_workers_have_the_numbers_of_one_device(name, arguments, results, tmp_path):
    (expected,) = of_cluster(tmp_path, "none", "--workers", "1")
    found = of_cluster(tmp_path, name, *arguments)
    assert len(found) == results
    for one in found:
        assert_same(one, expected)
