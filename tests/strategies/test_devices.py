from __future__ import annotations

import importlib
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.cluster import ClusterConfig
from tfdist.strategies.devices import choose_devices, grow_gpu_memory


@pytest.fixture
def calls():
    return []


@pytest.fixture
def two_gpus(monkeypatch, calls):
    """Makes TensorFlow list two GPUs, and records each change of their memory growth."""
    stock = tf.config.list_physical_devices
    gpus = [types.SimpleNamespace(name=f"/physical_device:GPU:{i}", device_type="GPU") for i in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else stock(kind))
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, enable: calls.append((gpu.name[-5:], enable))
    )
    parts = tf.config.get_logical_device_configuration
    monkeypatch.setattr(
        tf.config, "get_logical_device_configuration", lambda device: None if device in gpus else parts(device)
    )
    return gpus


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (0, "expected devices to be at least 1, received 0; leave devices out to use all."),
        (-3, "expected devices to be at least 1, received -3; leave devices out to use all."),
        (True, "expected devices to be at least 1, received True; leave devices out to use all."),
        ("CPU:0", "expected devices to be a number or a list of names, received 'CPU:0'; write ['CPU:0']."),
        ("2", "expected devices to be a number or a list of names, received '2'; write 2."),
        (2.0, "expected devices to be a number or a list of names, received 2.0; write for example devices=2."),
        ([0, 1], "expected a device name such as 'GPU:0' or 'CPU:1', received 0."),
        (range(2), "expected a device name such as 'GPU:0' or 'CPU:1', received 0."),
        (["XPU:0"], "expected a device name such as 'GPU:0' or 'CPU:1', received 'XPU:0'."),
        (["CPU"], "expected a device name such as 'GPU:0' or 'CPU:1', received 'CPU'."),
        (["CPU:0", "/device:cpu:0"], "expected each device once, received CPU:0 more than once."),
        (
            ["GPU:5", "CPU:0"],
            "expected devices of this machine, which has 0 GPUs, received GPU:5.",
        ),
        ([], "expected at least one device, received an empty list; leave devices out to use all."),
    ],
)
@pytest.mark.parametrize("name", ["mirrored", "central_storage", "one_device", "auto"])
def test_devices_that_cannot_be_used_are_refused(name, devices, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_strategy(name, devices=devices)


def test_a_number_of_numpy_and_an_iterator_of_names_are_read():
    assert create_strategy("auto", devices=np.int64(2)).num_replicas_in_sync == 2
    assert create_strategy("mirrored", devices=(f"CPU:{i}" for i in range(3))).num_replicas_in_sync == 3


def test_all_spellings_of_device_names_are_read():
    assert choose_devices(["/cpu:0", "/device:CPU:2", " CPU:01 "]) == ["CPU:0", "CPU:2", "CPU:1"]


def test_a_number_means_cpus_on_a_machine_without_gpus():
    assert choose_devices(3) == ["CPU:0", "CPU:1", "CPU:2"]
    assert choose_devices(None) == ["CPU:0"]


def test_a_number_means_gpus_on_a_machine_with_gpus(two_gpus):
    assert choose_devices(None) == ["GPU:0", "GPU:1"]
    assert choose_devices(1) == ["GPU:0"]
    assert choose_devices(["GPU:1", "CPU:0"]) == ["GPU:1", "CPU:0"]


def test_a_gpu_that_the_program_has_split_counts_as_several_and_keeps_their_sizes(two_gpus, calls, monkeypatch):
    parts = {two_gpus[0].name: ["half", "half"]}
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: parts.get(device.name))
    assert choose_devices(None) == ["GPU:0", "GPU:1", "GPU:2"]
    assert choose_devices(["GPU:2"]) == ["GPU:2"]
    grow_gpu_memory()
    assert calls == [("GPU:1", True)]


def test_more_devices_than_gpus_are_refused(two_gpus):
    with pytest.raises(ValueError, match="expected at most 2 devices, as many as there are GPUs, received 3; ask for"):
        choose_devices(3)


@pytest.mark.parametrize(
    ("name", "owner", "attribute"),
    [
        ("one_device", tf.distribute, "OneDeviceStrategy"),
        ("mirrored", tf.distribute, "MirroredStrategy"),
        ("central_storage", tf.distribute.experimental, "CentralStorageStrategy"),
        ("multi_worker_mirrored", tf.distribute, "MultiWorkerMirroredStrategy"),
    ],
)
def test_gpu_memory_grows_before_the_strategy_is_built(name, owner, attribute, two_gpus, calls, monkeypatch):
    module = importlib.import_module(f"tfdist.strategies.{name}")
    monkeypatch.setattr(module, "prepare_keras", lambda strategy, kind: strategy)
    built = types.SimpleNamespace(num_replicas_in_sync=1)
    monkeypatch.setattr(owner, attribute, lambda *_, **__: calls.append(attribute) or built)
    create_strategy(name)
    assert calls == [("GPU:0", True), ("GPU:1", True), attribute]


def test_gpu_memory_grows_before_a_parameter_server_is_built(two_gpus, calls, monkeypatch):
    module = importlib.import_module("tfdist.strategies.parameter_server")
    monkeypatch.setattr(module, "prepare_keras", lambda strategy, kind: strategy)
    monkeypatch.setattr(module, "wait_for_peers", lambda *_, **__: calls.append("peers"))
    monkeypatch.setattr(module, "watch_tasks", lambda *_, **__: calls.append("watch"))
    built = types.SimpleNamespace(num_replicas_in_sync=1)
    monkeypatch.setattr(module, "ParameterServerStrategy", lambda *_, **__: calls.append("strategy") or built)
    jobs = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    assert create_strategy("parameter_server", cluster=ClusterConfig(jobs=jobs, task_type="chief")) is built
    assert calls == [("GPU:0", True), ("GPU:1", True), "peers", "strategy", "watch"]


def test_gpus_that_are_already_in_use_give_a_warning(two_gpus, monkeypatch, caplog):
    def refuse(gpu, enable):
        raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", refuse)
    grow_gpu_memory()
    assert len(caplog.records) == 2
    assert "GPU memory growth is not changed: TensorFlow was started by: " in caplog.text


def test_another_error_of_memory_growth_is_not_hidden(two_gpus, monkeypatch):
    def refuse(gpu, enable):
        raise ValueError("Unrecognized device")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", refuse)
    with pytest.raises(ValueError, match="Unrecognized device"):
        grow_gpu_memory()
