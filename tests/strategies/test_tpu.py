from __future__ import annotations

import importlib
import re
import types

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.cluster.tpu import FoundTpu, find_tpu

MODULE = importlib.import_module("tfdist.strategies.tpu")


@pytest.fixture
def calls(monkeypatch):
    """Replaces the functions that connect to a TPU by fakes, and records their calls."""
    made = []
    resolver = types.SimpleNamespace()
    strategy = types.SimpleNamespace()

    def record(name, result=None):
        def call(*args, **kwargs):
            shown = ["resolver" if arg is resolver else "strategy" if arg is strategy else arg for arg in args]
            made.append((name, *shown, *kwargs.values()))
            return result

        return call

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", record("resolve", resolver))
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", record("connect"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", record("initialize"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", record("build", strategy))
    monkeypatch.setattr(MODULE, "prepare_keras", record("prepare_keras", strategy))
    return made


REMOTE = [
    ("connect", "resolver"),
    ("initialize", "resolver"),
    ("build", "resolver"),
    ("prepare_keras", "strategy", "tpu"),
]
LOCAL = REMOTE[1:]


def test_on_a_tpu_vm_no_connection_is_made(calls, monkeypatch):
    monkeypatch.setattr(MODULE, "find_tpu", lambda: FoundTpu("local", "this machine has /dev/accel0", ()))
    create_strategy("tpu")
    assert calls == [("resolve", "local"), *LOCAL]


def test_for_the_name_local_no_connection_is_made(calls):
    create_strategy("tpu", tpu="local")
    assert calls == [("resolve", "local"), *LOCAL]


@pytest.mark.parametrize("address", ["10.0.0.2:8470", "grpc://10.0.0.2:8470"])
def test_the_address_that_colab_gives_is_used(address, calls, monkeypatch):
    monkeypatch.setenv("COLAB_TPU_ADDR", address)
    create_strategy("tpu")
    assert calls == [("resolve", "grpc://10.0.0.2:8470"), *REMOTE]


def test_the_tpu_that_the_environment_names_is_used(calls, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    create_strategy("tpu")
    assert calls == [("resolve", "my-tpu"), *REMOTE]


@pytest.mark.parametrize("name", ["tpu", "auto"])
def test_a_tpu_that_the_program_names_overrides_the_environment(name, calls, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "another")
    create_strategy(name, tpu="mine")
    assert calls == [("resolve", "mine"), *REMOTE]


def test_auto_uses_a_tpu_that_it_finds_and_logs_where(calls, monkeypatch, caplog):
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    with caplog.at_level("INFO", logger="tfdist"):
        create_strategy("auto")
    assert calls[0] == ("resolve", "my-tpu")
    assert [r.getMessage() for r in caplog.records] == ["strategy tpu: a TPU was found: TPU_NAME is 'my-tpu'"]


def test_without_a_tpu_the_refusal_lists_the_places_that_were_searched(monkeypatch):
    monkeypatch.setattr(MODULE, "find_tpu", lambda: find_tpu({}, root="/nowhere"))
    with pytest.raises(
        RuntimeError,
        match=re.escape(
            "expected a TPU, found none after looking for the environment variable TPU_NAME (a named TPU), the "
            "environment variable COLAB_TPU_ADDR (Colab), the devices /dev/accel* (TPU VM), TPU_ACCELERATOR_TYPE with "
            "the devices /dev/vfio/[0-9]* (TPU VM); "
            'name a TPU with tpu="NAME" or tpu="grpc://host:port", or use another strategy.'
        ),
    ):
        create_strategy("tpu")


@pytest.mark.parametrize(
    ("named", "how"), [("grpc://10.0.0.2:8470", "as named"), (None, "TPU_NAME is 'grpc://10.0.0.2:8470'")]
)
@pytest.mark.parametrize("where", ["resolve", "connect", "initialize"])
def test_a_failing_connection_is_reported_in_one_sentence(named, how, where, calls, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route")

    owner, attribute = {
        "resolve": (tf.distribute.cluster_resolver, "TPUClusterResolver"),
        "connect": (tf.config, "experimental_connect_to_cluster"),
        "initialize": (tf.tpu.experimental, "initialize_tpu_system"),
    }[where]
    monkeypatch.setattr(owner, attribute, fail)
    monkeypatch.setenv("TPU_NAME", "grpc://10.0.0.2:8470")
    with pytest.raises(
        RuntimeError,
        match=re.escape(
            f"expected to reach the TPU 'grpc://10.0.0.2:8470' ({how}), but connecting failed: ConnectionError: "
            "no route; check the name and that this machine may reach it."
        ),
    ) as refusal:
        create_strategy("tpu", tpu=named)
    assert isinstance(refusal.value.__cause__, ConnectionError)


@pytest.mark.parametrize(
    ("environ", "files", "address", "source"),
    [
        ({}, [], None, None),
        ({"TPU_NAME": ""}, [], None, None),
        ({}, ["accel1", "accel0"], "local", "/dev/accel0"),
        ({}, ["vfio/0"], None, None),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, [], None, None),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, ["vfio/0"], "local", "/dev/vfio/0"),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, ["vfio/vfio"], None, None),
        ({"TPU_NAME": "pod"}, ["accel0"], "pod", "TPU_NAME is 'pod'"),
        ({"TPU_NAME": "pod", "COLAB_TPU_ADDR": "a:1"}, [], "pod", "TPU_NAME is 'pod'"),
        ({"COLAB_TPU_ADDR": "a:1"}, ["accel0"], "grpc://a:1", "COLAB_TPU_ADDR is 'a:1'"),
    ],
)
def test_a_tpu_is_found_by_variables_and_device_files(environ, files, address, source, tmp_path):
    for name in files:
        file = tmp_path / "dev" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = find_tpu(environ, root=str(tmp_path))
    assert found.address == address
    assert (found.source or "").endswith(source or "")
    assert (found.source is None) is (source is None)


def test_every_place_that_is_searched_is_listed():
    assert len(find_tpu({}, root="/nowhere").looked_for) == 4
