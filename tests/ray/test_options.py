"""What a trainer of Ray gives its workers, and which options it refuses."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket
import sys

import pytest

pytest.importorskip("ray.train", reason="the extra ray is not installed")

from ray.train import ScalingConfig
from ray.train.backend import BackendConfig

from tfdist._tensorflow import asks_for_tf_keras
from tfdist.cluster import ClusterConfig
from tfdist.cluster.launched import launched
from tfdist.ray import TfdistConfig, TfdistTrainer, worker


def train() -> None: ...


def test_the_options_of_ray_reach_its_trainer():
    scaling = ScalingConfig(num_workers=3)
    trainer = TfdistTrainer(lambda config: None, train_loop_config={"rate": 0.1}, scaling_config=scaling)
    assert trainer.train_loop_config == {"rate": 0.1}
    assert trainer.scaling_config.num_workers == 3
    assert trainer.backend_config == TfdistConfig()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"backend_config": BackendConfig()}, "expected the options of tfdist in tfdist_config, received backend_con"),
        ({"tfdist_config": BackendConfig()}, "expected tfdist_config to be a TfdistConfig, received BackendConfig"),
        ({"train_loop_per_worker": "train"}, "expected a train function, received str; write a function that makes"),
    ],
)
def test_options_without_a_meaning_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        TfdistTrainer(**{"train_loop_per_worker": train, **options})


def test_tpus_are_refused():
    scaling = ScalingConfig(num_workers=2)
    if not hasattr(scaling, "use_tpu"):
        pytest.skip("this version of Ray has no use_tpu")
    scaling.use_tpu = True
    with pytest.raises(ValueError, match="expected workers with CPUs or GPUs, received use_tpu=True; leave it out"):
        TfdistTrainer(train, scaling_config=scaling)


def test_another_keras_than_true_or_false_is_refused():
    with pytest.raises(ValueError, match="expected tf_keras to be True, False or None, received 'yes'"):
        TfdistConfig(tf_keras="yes")


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("True", True), ("0", False), (None, False)])
def test_the_workers_have_the_keras_of_the_program(value, expected, monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    if value is not None:
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", value)
    assert TfdistConfig().tf_keras is expected
    assert TfdistConfig(tf_keras=not expected).tf_keras is not expected


@pytest.mark.parametrize("tf_keras", [True, False])
def test_a_worker_that_has_imported_tensorflow_with_the_other_keras_is_refused(tf_keras, monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0" if tf_keras else "1")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", pytest)
    with pytest.raises(ValueError, match="expected TensorFlow not to be imported before the train function"):
        worker.choose_keras(tf_keras=tf_keras)
    worker.choose_keras(tf_keras=not tf_keras)
    monkeypatch.delitem(sys.modules, "tensorflow")
    worker.choose_keras(tf_keras=tf_keras)
    assert asks_for_tf_keras(os.environ) is tf_keras


def test_the_cluster_of_a_worker_is_that_of_ray_and_not_that_of_a_scheduler_below_it():
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "TFDIST_ENVIRONMENT": "slurm", "TFDIST_ATTEMPT": "9"}
    written = {**slurm, **worker.variables(["a:1", "b:2"], 1, launch_id="4f1c", attempt=2)}
    cluster = ClusterConfig.detect(written)
    assert (cluster.task_name, cluster.source) == ("worker 1", "TF_CONFIG")
    assert json.loads(written["TF_CONFIG"])["cluster"] == {"worker": ["a:1", "b:2"]}
    start = launched(written)
    assert dataclasses.asdict(start) == {"launch_id": "4f1c", "attempt": 2, "progress_file": None, "is_live": False}


def test_a_held_port_can_be_listened_on_as_tensorflow_does_and_is_given_to_no_other_program():
    port = int(worker.hold_port().rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError) as refused:
        other.bind(("", port))
    assert refused.value.errno == errno.EADDRINUSE
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen()


def test_each_start_of_the_workers_has_a_number_of_its_own():
    from tfdist.ray.config import TfdistBackend

    class WorkerGroup:
        """Two workers that note what they are told."""

        def __init__(self):
            self.told = []

        def execute_async(self, function):
            return [f"host:{4000 + rank}" for rank in range(2)]

        def execute_single_async(self, rank, function, *arguments, **options):
            self.told.append((rank, *arguments, options))

    backend, group = object.__new__(TfdistBackend), WorkerGroup()
    TfdistBackend.__init__(backend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.get", lambda found, timeout: found)
        for _ in range(2):
            backend.on_start(group, TfdistConfig(tf_keras=False))
    assert [(told[0], told[2], told[3]["attempt"]) for told in group.told] == [
        (0, 0, 0),
        (1, 1, 0),
        (0, 0, 1),
        (1, 1, 1),
    ]
    assert len({options["launch_id"] for *_, options in group.told}) == 1


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "1"])
def test_another_number_of_epochs_between_checkpoints_is_refused(every):
    from tfdist.ray import ReportCallback

    with pytest.raises(ValueError, match="expected checkpoint_every_epochs to be a whole number above 0 or None"):
        ReportCallback(checkpoint_every_epochs=every)
