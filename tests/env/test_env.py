"""`tfdist env` prints what a report of a defect needs, and nothing secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, VARIABLES
from tfdist._tensorflow import MISSING
from tfdist.env.gather import _cluster, gather, warnings
from tfdist.env.printing import as_text, lines_of, why_this_keras
from tfdist.env.variables import HIDDEN, Recorded, shown
from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.registry import MENDS

SECONDS = 120


def printed(*arguments: str, env: dict[str, str] | None = None) -> str:
    own = {**os.environ, **VARIABLES, **(env or {})}
    command = [sys.executable, "-m", "tfdist", "env", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_everything_is_printed_as_json() -> None:
    import tensorflow as tf

    text = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    found = json.loads(printed("--json", env={"TF_CONFIG": text, "TFDIST_API_KEY": "abc"}))
    assert found["tensorflow"]["version"] == tf.__version__
    assert found["tensorflow"]["devices"] == ["CPU:0"]
    assert found["tensorflow"]["oneDNN"].startswith("its kernels are")
    assert any("GLIBCXX" in flag for flag in found["tensorflow"]["compile flags"])
    assert found["tensorflow"]["keras"] == {"name": keras_in_use().name, "version": keras_in_use().version}
    assert found["cluster"]["described by"] == "TF_CONFIG"
    assert (found["cluster"]["task"], found["cluster"]["workers"]) == ("worker 1", 2)
    assert found["variables"]["TFDIST_API_KEY"] == HIDDEN
    assert found["machine"]["CPUs"] == len(os.sched_getaffinity(0))


def test_every_mend_for_this_keras_is_either_needed_or_not() -> None:
    mends = gather(timeout_seconds=SECONDS)["tensorflow"]["mends"]
    assert mends["unknown"] == []
    names = {mend.name for mend in MENDS if mend.is_written_for(keras_in_use())}
    assert {*mends["needed"], *mends["not needed"]} == names
    assert not {*mends["needed"]} & {*mends["not needed"]}


def test_a_tensorflow_that_crashes_does_not_keep_the_rest_from_being_printed(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    text = printed(env={"PYTHONPATH": path})
    assert "TensorFlow cannot be imported (signal 11)" in text
    assert "memory available" in text


def test_without_tensorflow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.env.gather.is_installed", lambda: False)
    found = gather(timeout_seconds=1)
    assert found["warnings"] == [MISSING]
    assert f"warning: {MISSING}" in as_text(found)


def test_two_packages_of_tensorflow_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.env.gather.is_installed", lambda: False)
    monkeypatch.setattr("tfdist.env.gather.TENSORFLOWS", ("numpy", "h5py"))
    found = gather(timeout_seconds=1)
    assert found["warnings"][0].startswith("expected one package of TensorFlow, received numpy ")
    assert lines_of(found)["versions"]["TensorFlow"].startswith("numpy ")
    assert warnings({"tensorflow": "2.21.0"}, {}, {}) == []


def test_a_cluster_that_is_not_valid_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.env.gather.is_installed", lambda: False)
    monkeypatch.setenv("TF_CONFIG", "{")
    (*_, warning) = gather(timeout_seconds=1)["warnings"]
    assert warning.startswith("expected TF_CONFIG to be a JSON object, received broken JSON")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOME", "/home/me", None),
        ("SLURM_JOB_COMMENT", "secret", None),
        ("TF_VAR_database", "x", None),
        ("TF_TOKEN_app_terraform_io", "x", None),
        ("SM_HPS", '{"password": "x"}', None),
        ("AWS_SECRET_ACCESS_KEY", "x", None),
        ("TF_USE_LEGACY_KERAS", "1", "1"),
        ("KERAS_BACKEND", "jax", "jax"),
        ("NCCL_DEBUG", "INFO", "INFO"),
        ("TFDIST_TOKEN", "x", HIDDEN),
        ("TF_PASSWORD", "x", HIDDEN),
        ("TPU_NAME", "grpc://me:secret@host:1", "grpc://(not shown)@host:1"),
    ],
)
def test_only_variables_that_change_a_training_are_shown(name: str, value: str, expected: str | None) -> None:
    assert shown({name: value}).get(name) == expected


def test_the_variables_that_describe_the_cluster_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.env.gather.is_installed", lambda: False)
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-2")
    monkeypatch.setenv("SM_HPS", '{"password": "x"}')
    found = gather(timeout_seconds=1)
    assert found["cluster"]["described by"] == "SageMaker"
    assert found["variables"]["SM_CURRENT_HOST"] == "algo-2"
    assert "SM_HPS" not in found["variables"]


def test_the_reason_for_the_keras_in_use_is_given() -> None:
    assert why_this_keras("tf_keras", {"TF_USE_LEGACY_KERAS": "true"}) == "TF_USE_LEGACY_KERAS=true"
    assert why_this_keras("keras2", {}).endswith("the package keras is Keras 2")


def test_ranks_that_do_not_come_are_a_warning_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TFDIST_COORDINATOR", "localhost:12345")
    found = _cluster(Recorded(os.environ), 0.5)
    assert "rank 1" in found["error"]
