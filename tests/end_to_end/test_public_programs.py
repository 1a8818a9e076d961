"""Programs in the manner of keras.io's examples have the numbers of one device on two replicas and on two workers.

All programs of a topology run in one process, or in one process for each worker, in float64. The programs are in
public_programs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.case import IS_TF_KERAS
from tests.conformance.compare import error_of
from tests.processes import launch, run

FOLDER = Path(__file__).parent / "public_programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "__main__", "common"))

# CI runs the programs whose losses take a way of their own through Keras.
CORE = (
    "actor_critic",
    "adversarial",
    "ctc_endpoint",
    "divides_itself",
    "endpoint_layer",
    "gan_on_batch",
    "loss_per_row",
    "logs_of_results",
    "losses_in_a_dict",
    "own_updates",
    "running_means",
    "strategy_run_loop",
    "updates_in_conditions",
    "vae",
    "wgan_gp",
)
MARKED_PROGRAMS = [pytest.param(name, marks=() if name in CORE else pytest.mark.full) for name in PROGRAMS]

# The number of processes of each topology.
TOPOLOGIES = {"mirrored": 1, "two_workers": 2}
ONE_DEVICE = "one_device"

# The largest relative difference. In float64, rounding cannot hide a wrong weight of a loss.
BOUND = 1e-10
# The operation of TensorFlow computes parts of the gradient in float32, as a test below shows.
BOUNDS = {"ctc_compiled": 1e-7}

# A topology runs all selected programs one after the other, with other tests on the same cores.
DEADLINE_SECONDS = 300.0
SECONDS_OF_A_PROGRAM = 40.0


class Programs:
    """Runs programs on a topology when the first of their results is asked for.

    Args:
        folder: folder for the results.
        names: names of the programs.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder, self._names = folder, names
        self._ended: dict[str, str] = {}

    def results(self, topology: str, program: str) -> list[dict[str, Any]]:
        """Returns the result of a program in each process of a topology."""
        if topology not in self._ended:
            self._ended[topology] = self._run(topology)
        found = []
        for index in range(TOPOLOGIES.get(topology, 1)):
            file = self._folder / f"{topology}-{index}-{program}.json"
            assert file.exists(), f"expected a result of {program} on {topology}, received: {self._ended[topology]}"
            found.append(json.loads(file.read_text()))
            assert "error" not in found[-1], found[-1]["error"]
        return found

    def _run(self, topology: str) -> str:
        command = ["-m", "tests.end_to_end.public_programs", topology, str(self._folder), *self._names]
        workers = TOPOLOGIES.get(topology, 1)
        deadline_seconds = DEADLINE_SECONDS + SECONDS_OF_A_PROGRAM * len(self._names)
        try:
            if workers > 1:
                arguments = ["--workers", str(workers), "--", *command]
                ended = launch(*arguments, cwd=self._folder, deadline_seconds=deadline_seconds)
            else:
                ended = run([sys.executable, *command], cwd=self._folder, deadline_seconds=deadline_seconds)
        except AssertionError as error:
            # The results of the programs before the one that hung are compared.
            return str(error)
        return f"exit code {ended.code}\n{ended.text[-3000:]}"


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Returns the programs that the selected tests need."""
    wanted = {
        item.callspec.params["program"]
        for item in request.session.items
        if item.module is request.module and "program" in getattr(getattr(item, "callspec", None), "params", {})
    }
    return Programs(tmp_path_factory.mktemp("programs"), sorted(wanted))


def numbers_of(value: Any) -> Iterator[float]:
    """Yields every number of a result."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers_of(item)
    elif value is not None:
        yield value


def first_and_last_losses(result: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Returns the first and the last value of each loss that a program reports more than once."""
    curves = {**result, **result["history"]}
    return [(curve[0], curve[-1]) for name, curve in curves.items() if "loss" in name and len(curve) > 1]


@pytest.mark.parametrize("program", MARKED_PROGRAMS)
def test_a_program_trains_on_one_device(program: str, programs: Programs) -> None:
    (result,) = programs.results(ONE_DEVICE, program)
    assert all(math.isfinite(number) for number in numbers_of(result))
    changes = [abs(last - first) / max(abs(first), 1e-3) for first, last in first_and_last_losses(result)]
    # Keras 2 reports 0 as the loss of a model that overrides compute_loss, so that only one loss has to move.
    assert max(changes, default=0) > 1e-6, "losses that do not move would hide a wrong gradient"


# In CI, Keras 3 runs the programs on two workers, and tf_keras on two replicas of one process.
@pytest.mark.parametrize("program", MARKED_PROGRAMS)
@pytest.mark.parametrize(
    "topology",
    [pytest.param(name, marks=pytest.mark.full if (name == "mirrored") != IS_TF_KERAS else ()) for name in TOPOLOGIES],
)
def test_a_program_has_the_numbers_of_one_device(topology: str, program: str, programs: Programs) -> None:
    (expected,) = programs.results(ONE_DEVICE, program)
    for own in programs.results(topology, program):
        error, where = error_of(own, expected)
        assert error <= BOUNDS.get(program, BOUND), f"{where} differs by {error:.1e}"


CTC_OF_CHANGED_INPUTS = """
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
rows, steps, length = 256, 12, 3
labels = tf.constant([[0, 1, 2]] * rows)
probabilities = tf.nn.softmax(rng.normal(size=(rows, steps, 6)))


def gradient(inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.keras.backend.ctc_batch_cost(labels, inputs, tf.fill([rows, 1], steps), tf.fill([rows, 1], length))
    return tape.gradient(loss, inputs).numpy()


before, after = gradient(probabilities), gradient(probabilities * (1 + 1e-13))
print("RESULT", before.dtype, abs(after - before).max(), abs(before).max())
"""


@pytest.mark.full
def test_ctc_of_tensorflow_computes_parts_of_its_gradient_in_float32(tmp_path: Path) -> None:
    ended = run([sys.executable, "-c", CTC_OF_CHANGED_INPUTS], cwd=tmp_path, deadline_seconds=120)
    dtype, change, size = ended.text.partition("RESULT ")[2].split()[:3]
    assert dtype == "float64"
    assert float(change) > 1e-12 * float(size), "a change of 1e-13 in float64"
