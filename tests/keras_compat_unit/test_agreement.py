"""What the workers compare before they train: descriptions, differences, messages, and the exchange between workers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_compat.agreement import rounds
from tfdist.keras_compat.agreement.describe import describe, plain
from tfdist.keras_compat.agreement.rounds import Rounds
from tfdist.keras_compat.agreement.training import Training, disagreement, other_python_patches

keras = tf.keras
START = "expected the same training on all workers, received: "
TWO = ["worker 0", "worker 1"]


def training(**changes):
    fields = {
        "call": "calls fit",
        "variables": [["dense/kernel", "(8, 16)", "float32", ""]],
        "optimizers": {"optimizer": {"class": "Adam", "learning_rate": 0.001, "beta_1": 0.9}},
        "compiled": {"loss": "mse", "metrics": ["mae"]},
        "numbers": {"epochs": 1, "seed": None, "global_batch_size": 8},
        "data": [["0", "dense", "float32", [8]], ["1", "dense", "int64", []]],
        "versions": {"Python": "3.11.7", "TensorFlow": "2.21.0"},
    }
    return Training(**{**fields, **changes})


def optimizer(**config):
    return {"optimizer": {"class": "Adam", "learning_rate": 0.001, "beta_1": 0.9, **config}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"call": "calls evaluate", "variables": []}, "worker 1 calls evaluate, worker 0 calls fit."),
        (
            {"optimizers": optimizer(learning_rate=0.002)},
            "worker 1 has Adam(learning_rate=0.002), worker 0 has Adam(learning_rate=0.001).",
        ),
        ({"optimizers": {"optimizer": {"class": "SGD"}}}, "worker 1 has SGD, worker 0 has Adam."),
        (
            {"optimizers": {**optimizer(), "critic": {"class": "SGD"}}},
            "worker 1 has critic=SGD(), worker 0 has critic=None.",
        ),
        ({"compiled": {"loss": "mae", "metrics": ["mae"]}}, "worker 1 has loss=mae, worker 0 has loss=mse."),
        (
            {"compiled": {"loss": "mse", "metrics": ["mae", "mse"]}},
            "worker 1 has metrics=[mae, mse], worker 0 has metrics=[mae].",
        ),
        (
            {"numbers": {"epochs": 2, "seed": 7, "global_batch_size": 8}},
            "worker 1 has epochs=2, worker 0 has epochs=1; worker 1 has seed=7, worker 0 has seed=None.",
        ),
        (
            {"variables": [["dense/kernel", "(8, 32)", "float32", ""]]},
            "worker 1 has the variable dense/kernel (8, 32) float32, worker 0 has the variable dense/kernel (8, 16) flo"
            "at32.",
        ),
        (
            {"variables": [["dense/kernel", "(8, 16)", "float32", ""]] * 3},
            "worker 1 has 3 variables in the model, worker 0 has 1 variable in the model.",
        ),
        (
            {"variables": [["dense/kernel", "(8, 16)", "float32", "not trainable"]]},
            "worker 1 has the variable dense/kernel (8, 16) float32 not trainable, worker 0 has the variable dense/ker"
            "nel (8, 16) float32.",
        ),
        (
            {"data": [["0", "dense", "float32", [8, 1]], ["1", "dense", "int64", []]]},
            "worker 1 has the data 0: dense float32 (batch, 8, 1), worker 0 has the data 0: dense float32 (batch, 8).",
        ),
        (
            {"data": [["0", "dense", "float32", [8]]]},
            "worker 1 has the data 0: dense float32 (batch, 8), worker 0 has the data 0: dense float32 (batch, 8), 1: d"
            "ense int64 (batch,).",
        ),
        (
            {"versions": {"Python": "3.12.1", "TensorFlow": "2.20.0"}},
            "worker 1 has Python 3.12.1, worker 0 has Python 3.11.7; worker 1 has TensorFlow 2.20.0, worker 0 has Tens"
            "orFlow 2.21.0.",
        ),
    ],
)
def test_a_difference_is_named_with_both_values_and_both_workers(changes, message):
    assert disagreement(TWO, [training(), training(**changes)]) == START + message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"variables": None},
        {"data": None},
        {"data": [["0", "dense", "float32", [None]], ["1", "dense", "int64", None]]},
        {"versions": {"Python": "3.11.9", "TensorFlow": "2.21.0"}},
        {"numbers": {"epochs": 1, "seed": None}},
    ],
    ids=str,
)
def test_equal_trainings_and_values_that_are_not_known_are_no_difference(changes):
    assert disagreement(TWO, [training(), training(**changes)]) == ""


def test_other_patch_versions_of_python_are_named_for_the_log():
    trainings = [training(versions={"Python": version}) for version in ("3.11.7", "3.11.9")]
    assert other_python_patches(TWO, trainings) == "worker 1 has Python 3.11.9, worker 0 has Python 3.11.7"
    assert other_python_patches(TWO, [training(), training()]) == ""


def test_workers_with_the_same_value_are_named_together():
    workers = [f"worker {i}" for i in range(7)]
    trainings = [training(numbers={"epochs": 1 if i in (0, 2) else 3}) for i in range(7)]
    assert disagreement(workers, trainings) == (
        f"{START}worker 1, worker 3, worker 4 and 2 more have epochs=3, worker 0 and worker 2 have epochs=1."
    )


def test_only_the_first_differences_are_shown_and_the_rest_are_counted():
    trainings = [training(numbers={f"n{k}": worker for k in range(9)}) for worker in range(2)]
    message = disagreement(TWO, trainings)
    assert message.count("worker 1") == 5
    assert message.endswith("; and 4 more differences.")


def test_a_training_is_the_same_after_json():
    assert Training.from_json(training().to_json()) == training()


def made(units=16, rate=0.01, *, has_input=True):
    inputs = [keras.layers.Input((8,))] if has_input else []
    model = keras.Sequential([*inputs, keras.layers.Dense(units)])
    model.compile(keras.optimizers.SGD(rate, momentum=0.5), keras.losses.MeanSquaredError(), metrics=["mae"])
    return model


def described(model, x=None, **arguments):
    return describe(model, "fit", {"x": np.zeros([4, 8], "float32") if x is None else x, **arguments})


def test_two_equal_models_have_the_same_description_although_keras_counts_their_layers():
    assert described(made()) == described(made())


def test_a_model_is_described_by_its_variables_or_by_its_layers_if_it_has_no_variables():
    built, unbuilt = described(made()), described(made(has_input=False))
    assert [variable[1:] for variable in built.variables] == [["(8, 16)", "float32", ""], ["(16,)", "float32", ""]]
    assert (built.layers, unbuilt.variables) == (None, None)
    message = disagreement(TWO, [unbuilt, described(made(17, has_input=False))])
    assert message == f"{START}worker 1 has the layer Dense(units=17), worker 0 has the layer Dense(units=16)."


def test_optimizer_loss_and_schedule_are_described_by_their_configuration():
    found = described(made())
    assert found.optimizers["optimizer"]["class"] == "SGD"
    assert found.optimizers["optimizer"]["momentum"] == 0.5
    assert found.compiled["loss"]["class"] == "MeanSquaredError"
    schedules = [keras.optimizers.schedules.CosineDecay(0.1, steps) for steps in (5, 6)]
    message = disagreement(TWO, [described(made(rate=rate)) for rate in schedules])
    assert message == (
        f"{START}worker 1 has SGD(learning_rate=CosineDecay(decay_steps=6)), "
        "worker 0 has SGD(learning_rate=CosineDecay(decay_steps=5))."
    )


def test_the_arguments_of_a_loss_are_described_on_every_keras():
    assert plain(keras.losses.Huber(delta=2.5))["delta"] == 2.5


def batches(size, policy=None):
    data = tf.data.Dataset.from_tensor_slices((np.zeros([32, 8], "float32"), np.zeros([32], "int64"))).batch(size)
    options = tf.data.Options()
    if policy is not None:
        options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options).prefetch(1)


def test_the_global_batch_is_that_of_the_dataset_unless_workers_shard_it_themselves():
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert described(made(), batches(6)).numbers["global_batch_size"] == 6
    assert described(made(), batch_size=5).numbers["global_batch_size"] == 5
    assert described(made(), batch_size=None).numbers["global_batch_size"] == 32
    assert "global_batch_size" not in described(made(), batches(6, off)).numbers
    assert "global_batch_size" not in described(made(), iter([])).numbers


def test_the_number_of_steps_is_that_which_keras_counts_in_the_data():
    def steps(x, **arguments):
        return described(made(), x, steps_per_epoch=None, **arguments).numbers["steps_per_epoch"]

    assert steps(batches(6)) == 6
    assert steps(batches(6).repeat()) is None
    assert steps(np.zeros([9, 8], "float32"), batch_size=4) == 3
    assert described(made(), batches(6), steps_per_epoch=2).numbers["steps_per_epoch"] == 2


def test_data_are_described_without_the_size_of_the_batch():
    expected = [["0", "dense", "float32", [8]], ["1", "dense", "int64", []]]
    assert described(made(), batches(6)).data == expected
    assert described(made(), np.zeros([3, 8], "float32"), y=np.zeros([3], "int64")).data == expected
    assert described(made(), iter([])).data is None


def test_user_code_that_cannot_be_described_is_left_out():
    class Odd(keras.layers.Layer):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def get_config(self):
            raise NotImplementedError

    model = keras.Sequential([Odd(lambda x: x)])
    model.compile(loss=lambda y, p: p)
    found = described(model)
    assert found.layers == [{"class": "Odd"}]
    assert found.compiled["loss"] == "<lambda>"
    json.loads(found.to_json())


def test_plain_values_hold_no_addresses_and_no_large_arrays():
    assert plain({"a": np.float32(0.5), "b": (1, None), "name": "x"}) == {"a": 0.5, "b": [1, None]}
    assert plain(np.zeros(100)).startswith("array of shape (100,) ")
    assert plain(np.zeros(100)) != plain(np.ones(100))
    assert plain(object()) == "object"


class Service:
    """Replaces the coordination service of TensorFlow."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def set_config_key_value(self, key, value):
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def get_config_key_value(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise tf.errors.DeadlineExceededError(None, None, "timed out")
            return self.values[key]

    def delete_config_key_value(self, folder):
        with self.changed:
            for key in [key for key in self.values if key.startswith(f"{folder}/")]:
                del self.values[key]


@dataclasses.dataclass
class Worker:
    own: int
    rounds: Rounds

    def compare(self, key, text, timeout_seconds=20.0):
        """Returns the error of a comparison, or None."""
        try:
            self.rounds.compare(
                key=key,
                text=text,
                explain=lambda names, texts: "" if set(texts) == {"fine"} else f"{names} {texts}",
                to="call fit",
                timeout_seconds=timeout_seconds,
            )
        except (ValueError, TimeoutError) as error:
            return error
        return None


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setattr(rounds, "_service", lambda: service)
    return service


def workers(count=3):
    tasks = [("worker", i) for i in range(count)]
    return [Worker(i, Rounds(tasks, i, itertools.count())) for i in range(count)]


def compared(background, group, texts, **options):
    futures = [background(worker.compare, *text, **options) for worker, text in zip(group, texts, strict=True)]
    return [future.result(20) for future in futures]


def test_workers_that_agree_store_nothing_for_long(service, background):
    group = workers()
    for _ in range(5):
        assert compared(background, group, [("a", "A")] * 3) == [None] * 3
    assert {key.split("/")[2] for key in service.values} == {"4"}


def test_every_worker_raises_the_same_message_and_the_next_comparison_succeeds(service, background):
    group = workers()
    errors = compared(background, group, [("a", "A"), ("a", "A"), ("b", "B")])
    expected = "['worker 0', 'worker 1', 'worker 2'] ['A', 'A', 'B']"
    assert [(type(error), str(error)) for error in errors] == [(ValueError, expected)] * 3
    assert compared(background, group, [("a", "A")] * 3) == [None] * 3


def test_keys_may_differ_if_the_texts_explain_no_difference(service, background):
    assert compared(background, workers(), [(key, "fine") for key in "abc"]) == [None] * 3


def test_a_worker_that_does_not_come_is_named_on_all_workers(service, background):
    group = workers()
    errors = compared(background, group[:2], [("a", "A")] * 2, timeout_seconds=0.3)
    message = "expected every worker to call fit within 0.3 s, waited for worker 2; find out in its log"
    assert all(isinstance(error, TimeoutError) and str(error).startswith(message) for error in errors)


def test_a_worker_whose_process_has_ended_is_noticed_before_the_timeout(service, monkeypatch):
    def check(device, timeout_in_ms):
        if device == "/job:worker/replica:0/task:1":
            raise tf.errors.UnavailableError(None, None, "connection refused")

    service.check_collective_ops_peer_health = check
    monkeypatch.setattr(rounds, "_HEALTH_SECONDS", 0.1)
    with pytest.raises(tf.errors.UnavailableError, match="received no answer from worker 1, whose process has ended"):
        workers()[0].compare("a", "A")


def test_a_worker_0_whose_process_has_ended_is_named(service, monkeypatch):
    def get(key, milliseconds):
        raise tf.errors.UnavailableError(None, None, "connection refused")

    monkeypatch.setattr(service, "get_config_key_value", get)
    with pytest.raises(tf.errors.UnavailableError, match="received no answer from worker 0, whose process has ended"):
        workers()[1].compare("a", "A")


@pytest.fixture
def background():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        yield pool.submit
