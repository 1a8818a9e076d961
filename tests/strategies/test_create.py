from __future__ import annotations

import importlib
import json
import re
import sys

import pytest
import tensorflow as tf

from tfdist import AllReduceOptions, create_strategy, strategies
from tfdist.cluster import ClusterConfig
from tfdist.cluster.others import other_workers
from tfdist.strategies import STRATEGY_NAMES

RING = AllReduceOptions(algorithm="ring")


def partitioner(*_, **__):
    raise AssertionError("expected no strategy to call the partitioner")


@pytest.mark.parametrize(
    ("name", "options", "kind", "replicas"),
    [
        ("one_device", {}, tf.distribute.OneDeviceStrategy, 1),
        ("one_device", {"devices": ["CPU:1"]}, tf.distribute.OneDeviceStrategy, 1),
        ("mirrored", {}, tf.distribute.MirroredStrategy, 1),
        ("mirrored", {"devices": 2}, tf.distribute.MirroredStrategy, 2),
        ("mirrored", {"devices": 4}, tf.distribute.MirroredStrategy, 4),
        ("mirrored", {"devices": ["/CPU:3", "cpu:1"]}, tf.distribute.MirroredStrategy, 2),
        ("central_storage", {"devices": 2}, tf.distribute.experimental.CentralStorageStrategy, 2),
        ("multi_worker_mirrored", {}, tf.distribute.MultiWorkerMirroredStrategy, 1),
        ("auto", {}, tf.distribute.OneDeviceStrategy, 1),
        ("auto", {"devices": 2}, tf.distribute.MirroredStrategy, 2),
    ],
)
def test_a_name_gives_its_strategy(name, options, kind, replicas):
    strategy = create_strategy(name, **options)
    assert isinstance(strategy, kind)
    assert strategy.num_replicas_in_sync == replicas


def test_one_device_computes_on_the_device_named():
    strategy = create_strategy("one_device", devices=["CPU:3"])
    where = strategy.run(lambda: tf.constant(1.0) + 1.0).device
    assert where.endswith("CPU:3")


def test_mirrored_replicas_compute_on_the_devices_named():
    strategy = create_strategy("mirrored", devices=["CPU:3", "CPU:1"])
    values = strategy.experimental_local_results(strategy.run(lambda: tf.constant(1.0) + 1.0))
    assert [value.device[-5:] for value in values] == ["CPU:3", "CPU:1"]


def test_central_storage_keeps_its_variables_on_the_cpu():
    strategy = create_strategy("central_storage", devices=2)
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert variable.device.endswith("CPU:0")


def test_one_device_refuses_several():
    with pytest.raises(
        ValueError, match=re.escape("expected one device for the strategy one_device, received 2; use ")
    ):
        create_strategy("one_device", devices=2)


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ValueError,
        match=re.escape(f"expected one of the strategies {', '.join(STRATEGY_NAMES)}, received 'mirorred'."),
    ):
        create_strategy("mirorred")


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "300", True])
@pytest.mark.parametrize("name", ["auto", "one_device", "multi_worker_mirrored"])
def test_a_startup_timeout_that_is_not_positive_is_refused(name, seconds):
    message = f"expected startup_timeout_seconds to be a positive, finite number, received {seconds!r}; leave"
    with pytest.raises(ValueError, match=re.escape(message)):
        create_strategy(name, startup_timeout_seconds=seconds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"all_reduce": "nccl"}, "'nccl'; write for example tfdist.AllReduceOptions(algorithm='nccl')."),
        ({"all_reduce": {"num_packs": 2}}, "{'num_packs': 2}; write for example tfdist.AllReduceOptions(algorithm="),
        ({"cluster": {"worker": ["a:1"]}}, "{'worker': ['a:1']}; make one with ClusterConfig.from_tf_config(text), "),
        ({"tpu": True}, "expected tpu to be the name or the address of a TPU, or 'local', received True."),
        ({"sync_batch_norm": "no"}, "expected sync_batch_norm to be True or False, received 'no'."),
        ({"sync_batch_norm": None}, "expected sync_batch_norm to be True or False, received None."),
    ],
)
@pytest.mark.parametrize("name", ["auto", "mirrored", "multi_worker_mirrored", "parameter_server"])
def test_an_argument_of_another_type_is_refused(name, options, message, caplog):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_strategy(name, **options)
    assert "strategy" not in caplog.text


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (strategies.mirrored, {"all_reduce": "ring"}),
        (strategies.multi_worker_mirrored, {"all_reduce": "ring"}),
        (strategies.multi_worker_mirrored, {"cluster": "{}"}),
        (strategies.multi_worker_mirrored, {"startup_timeout_seconds": "60"}),
        (strategies.parameter_server, {"cluster": "{}"}),
        (strategies.parameter_server, {"startup_timeout_seconds": "60"}),
    ],
)
def test_the_function_of_a_strategy_refuses_an_argument_of_another_type(make, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"expected {name} to be "):
        make(**options)


def test_auto_accepts_a_startup_timeout_for_every_choice():
    assert create_strategy("auto", startup_timeout_seconds=30.0).num_replicas_in_sync == 1


WORKERS = "multi_worker_mirrored and parameter_server take"
DEVICES = "one_device and mirrored and central_storage and multi_worker_mirrored take"


@pytest.mark.parametrize(
    ("name", "option", "value", "takers"),
    [
        ("parameter_server", "devices", ["CPU:0"], DEVICES),
        ("tpu", "devices", 2, DEVICES),
        ("mirrored", "cluster", ClusterConfig(), WORKERS),
        ("mirrored", "startup_timeout_seconds", 30.0, WORKERS),
        ("one_device", "startup_timeout_seconds", 30.0, WORKERS),
        ("mirrored", "tpu", "my-tpu", "tpu takes"),
        ("one_device", "tpu", "local", "tpu takes"),
        ("multi_worker_mirrored", "tpu", "my-tpu", "tpu takes"),
        ("mirrored", "variable_partitioner", partitioner, "parameter_server takes"),
        ("auto", "variable_partitioner", partitioner, "parameter_server takes"),
    ],
)
def test_an_option_that_a_strategy_does_not_take_is_refused(name, option, value, takers):
    chosen = "one_device" if name == "auto" else name
    with pytest.raises(
        ValueError,
        match=re.escape(f"expected no {option} for the strategy {chosen}, received {value!r}; only {takers} it."),
    ):
        create_strategy(name, **{option: value})


@pytest.mark.parametrize("name", ["one_device", "central_storage", "parameter_server", "tpu", "auto"])
def test_all_reduce_options_are_refused_by_strategies_without_a_choice(name):
    chosen = "one_device" if name == "auto" else name
    with pytest.raises(
        ValueError,
        match=re.escape(
            f"expected no all_reduce options for the strategy {chosen}, whose all-reduce cannot be configured, "
        )
        + re.escape(f"received {RING}."),
    ):
        create_strategy(name, all_reduce=RING)


@pytest.mark.parametrize("name", ["one_device", "central_storage"])
def test_default_all_reduce_options_are_accepted_by_strategies_without_a_choice(name):
    create_strategy(name, all_reduce=AllReduceOptions())


def test_auto_gives_the_evaluator_a_strategy_of_its_own():
    evaluator = ClusterConfig(jobs={"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, task_type="evaluator")
    assert isinstance(create_strategy("auto", cluster=evaluator), tf.distribute.OneDeviceStrategy)


def test_auto_reads_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}')
    with pytest.raises(ValueError, match=r"TF_CONFIG: expected task\.index"):
        create_strategy("auto")


def test_auto_logs_its_choice(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "tfdist_native", None)
    with caplog.at_level("INFO", logger="tfdist"):
        create_strategy("auto", devices=2)
    assert [record.getMessage() for record in caplog.records] == [
        "strategy mirrored: 2 devices asked for; all-reduce: auto chose ring (tfdist-native is not installed)",
    ]


def test_a_strategy_by_name_logs_how_its_gradients_are_summed(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "tfdist_native", None)
    with caplog.at_level("INFO", logger="tfdist"):
        create_strategy("mirrored", devices=2)
        create_strategy("mirrored", devices=2, all_reduce=AllReduceOptions(algorithm="hierarchical_copy"))
        create_strategy("one_device")
    (record,) = caplog.records
    assert record.getMessage() == "all-reduce: auto chose ring (tfdist-native is not installed)"


@pytest.mark.parametrize("name", ["one_device", "mirrored", "central_storage", "multi_worker_mirrored"])
def test_prepare_keras_is_called_for_every_strategy(name, monkeypatch):
    module = importlib.import_module(f"tfdist.strategies.{name}")
    seen = []
    monkeypatch.setattr(module, "prepare_keras", lambda strategy, kind: seen.append((strategy, kind)) or strategy)
    strategy = create_strategy(name)
    assert seen == [(strategy, name)]


@pytest.mark.parametrize("name", ["one_device", "mirrored", "central_storage"])
def test_a_strategy_by_name_that_leaves_the_other_workers_out_says_so(name, monkeypatch, caplog):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    create_strategy(name)
    assert (
        f"the strategy {name} does not train with the other workers, received a cluster of 2 (TF_CONFIG)" in caplog.text
    )
    caplog.clear()
    monkeypatch.setenv("TF_CONFIG", json.dumps({**cluster, "task": {"type": "evaluator", "index": 0}}))
    create_strategy(name)
    assert "other workers" not in caplog.text
    assert other_workers({"TF_CONFIG": "no JSON"}) == (0, "")
