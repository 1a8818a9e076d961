"""tfdist on GPUs: `python -m pytest -m gpu tests/gpu`. Without a GPU, the same programs run on logical CPUs.

The tests on CPUs show that the programs work apart from the GPU; they show nothing about GPUs.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.gpu.conftest import KINDS_IN_FULL, count_gpus
from tfdist.test.checks import BOUND, COMPARED


def test_memory_grows_and_is_set_before_tensorflow_starts(kind, program) -> None:
    found = program("memory", kind)
    assert not found["before"]
    assert f"{kind}:0" in found["device"]
    if kind == "GPU":
        assert all(found["grows"])
        assert found["megabytes"][0] < 1024


@pytest.mark.parametrize("kind", KINDS_IN_FULL, indirect=True)
def test_two_parts_of_one_device_train_as_one_device(kind, program, one_device: Path) -> None:
    found = program("one_device_in_parts", kind, str(one_device))
    assert found["replicas"] == 2
    assert found["errors"].keys() == set(COMPARED)
    assert max(found["errors"].values()) <= BOUND, found["errors"]


@pytest.mark.parametrize("kind", KINDS_IN_FULL, indirect=True)
def test_nccl_on_two_devices_trains_as_one_device(kind, program, one_device: Path) -> None:
    if kind == "GPU" and count_gpus() < 2:
        pytest.skip("NCCL needs two GPUs, and TensorFlow finds one on this machine")
    found = program("nccl", kind, str(one_device))
    assert found["replicas"] == 2
    assert max(found["errors"].values()) <= BOUND, found["errors"]


@pytest.mark.parametrize("kind", KINDS_IN_FULL, indirect=True)
def test_distributed_optimizer_lowers_the_loss_with_and_without_compression(kind, program) -> None:
    found = program("distributed_optimizer", kind)
    for compression, numbers in found.items():
        assert all(later < earlier for earlier, later in itertools.pairwise(numbers["losses"])), compression
    assert found["fp16"]["losses"] == pytest.approx(found["none"]["losses"], rel=1e-2)


@pytest.mark.parametrize("kind", KINDS_IN_FULL, indirect=True)
def test_mixed_float16_lowers_the_loss_nearly_as_float32(kind, program) -> None:
    found = program("mixed_float16", kind)
    # The first steps are skipped until the scale of the loss fits, so that the losses of the epochs differ.
    assert found["mixed_float16"][-1] < found["mixed_float16"][0] / 2
    assert found["mixed_float16"][-1] == pytest.approx(found["float32"][-1], rel=0.25)


@pytest.mark.parametrize("kind", KINDS_IN_FULL, indirect=True)
def test_xla_computes_the_same_numbers(kind, program) -> None:
    found = program("xla", kind)
    assert found["compiled"] == pytest.approx(found["plain"], rel=1e-4)
    assert "expected compile(jit_compile=False) on several replicas" in found["refused"]


@pytest.mark.parametrize("kind", KINDS_IN_FULL, indirect=True)
def test_a_step_of_lamb_is_timed_with_and_without_xla(kind, program) -> None:
    found = program("lamb", kind)
    assert f"{kind}:0" in found["device"]
    assert found["norm compiled"] == pytest.approx(found["norm plain"], rel=1e-4)
    assert min(found["plain"], found["compiled"]) > 0
    print(f"LAMB, {found['parameters']} parameters: {found['plain']:.2f} ms, with XLA {found['compiled']:.2f} ms")
