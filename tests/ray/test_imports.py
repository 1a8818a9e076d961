"""tfdist needs no Ray, and tfdist.ray imports no TensorFlow before the train function does."""

from __future__ import annotations

import pytest
from packaging.version import Version

WITHOUT = """
import sys
sys.modules["ray"] = None
import tfdist
from tfdist import *
try:
    import tfdist.ray
except ImportError as error:
    print(error)
"""


def test_without_ray_the_import_says_what_to_install(children):
    printed = children.run(WITHOUT, cold=True).out
    assert printed.startswith("expected Ray Train to be installed, received: ")
    assert printed.endswith("; run pip install '.[ray]' in a checkout of tfdist.\n")
    assert printed.count("\n") == 1


def test_a_worker_of_ray_chooses_its_keras_before_tensorflow_is_imported(children):
    pytest.importorskip("ray.train", reason="the extra ray is not installed")
    program = """
    import sys, tfdist, tfdist.ray
    assert tfdist.ray.TfdistTrainer and tfdist.ray.worker
    print({"tensorflow", "keras", "tf_keras"} & set(sys.modules))
    """
    assert children.run(program, cold=True).out == "set()\n"


def test_the_trainer_of_ray_itself_chooses_tf_keras(children):
    # If this fails, Ray has changed: correct docs/ray.md.
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    if Version(ray.__version__) < Version("2.60"):
        pytest.skip(f"Ray {ray.__version__} leaves the choice to the program")
    program = """
    import os
    from ray.train.tensorflow.config import _setup_tensorflow_environment
    _setup_tensorflow_environment(["a:1"], 0)
    print(os.environ.get("TF_USE_LEGACY_KERAS"))
    """
    assert children.run(program, cold=True).out.splitlines()[-1] == "1"


def test_the_first_generation_of_ray_train_is_refused(children):
    pytest.importorskip("ray.train", reason="the extra ray is not installed")
    program = """
    from tfdist.ray import TfdistTrainer
    try:
        TfdistTrainer(print)
    except ValueError as error:
        print("REFUSED", error)
    """
    printed = children.run(program, cold=True, env={"RAY_TRAIN_V2_ENABLED": "0"}).out
    assert "REFUSED Ray Train V2 must be enabled with `RAY_TRAIN_V2_ENABLED=1`" in printed
