"""The comparison of records, on plain values."""

from __future__ import annotations

import numpy as np
import pytest

from tfdist.verify.causes import Cause, candidates, combined, find_causes, leftover_of, settings_that_differ
from tfdist.verify.compare import bounds_of, compare, rows_differ
from tfdist.verify.values import Experiment, Record, Result


def record(*weights: float, loss: tuple[float, ...] = ()) -> Record:
    return Record(
        weights=[{"kernel": np.array([value, 1.0])} for value in weights], logs=[{"loss": value} for value in loss]
    )


def test_equal_records_are_equal():
    found = compare(Result(records=(record(1.0, 2.0),)), record(1.0, 2.0), bound=1e-10)
    assert found.is_equal and found.largest == 0


def test_the_first_step_and_the_largest_size_of_a_difference_are_found():
    found = compare(Result(records=(record(1.0, 2.5, 4.0),)), record(1.0, 2.0, 2.0), bound=1e-10)
    (difference,) = found.differences
    assert (difference.kind, difference.name, difference.step, difference.size) == ("weight", "kernel", 2, 1.0)


def test_any_worker_may_differ():
    found = compare(Result(records=(record(1.0), record(3.0))), record(1.0), bound=1e-10)
    assert not found.is_equal


def test_missing_steps_and_values_that_are_not_finite_differ():
    assert not compare(Result(records=(record(1.0),)), record(1.0, 2.0), bound=1e-10).is_equal
    assert not compare(Result(records=(record(float("nan")),)), record(1.0), bound=1e-10).is_equal


def test_a_perturbation_widens_the_bounds_of_its_own_step_only():
    bounds = bounds_of(record(1.0, 1.0), record(1.0, 1.01))
    assert compare(Result(records=(record(1.0, 1.05),)), record(1.0, 1.0), bound=1e-5, bounds=bounds).is_equal
    assert not compare(Result(records=(record(1.05, 1.0),)), record(1.0, 1.0), bound=1e-5, bounds=bounds).is_equal


def test_bounds_are_those_of_the_largest_perturbation_so_far():
    bounds = bounds_of(record(1.0, 1.0), record(1.0, 1.01), record(1.02, 1.0))
    assert bounds["weight", "kernel"] == pytest.approx([0.2, 0.2])


def test_rows_may_be_anywhere_in_the_global_batch():
    whole = Record(rows=[[["a", "b", "c", "d"]]])
    assert rows_differ(Result(records=(Record(rows=[[["d"], ["a"]]]), Record(rows=[[["c", "b"]]]))), whole) == ""


def test_rows_that_differ_are_described():
    whole = Record(rows=[[["a", "b"]]])
    same = Result(records=(Record(rows=[[["a"]]]), Record(rows=[[["a"]]])))
    assert rows_differ(same, whole) == "in step 1 all workers read the same 1 rows"
    more = Result(records=(Record(rows=[[["a", "b", "c"]]]),))
    assert rows_differ(more, whole) == "the global batch of step 1 has 3 rows instead of 2"
    other = Result(records=(Record(rows=[[["a"], ["c"]]]),))
    assert rows_differ(other, whole) == "1 of the 2 rows of step 1 are others than on one device"


NORMALIZATION = (Cause(name="batch normalization", text=""), Experiment(synchronizes=True))
NOISE = (Cause(name="random layers", text=""), Experiment(removes_noise=True))
SUMS = (Cause(name="division", text=""), Experiment(loss="global_sum"))
LEFT = Cause(name="unknown", text="")


def names_without(*needed: str) -> list[str]:
    def is_equal(experiment: Experiment) -> bool:
        return all(getattr(experiment, name) for name in needed)

    return [cause.name for cause in find_causes([NORMALIZATION, NOISE, SUMS], is_equal, LEFT)]


def test_a_single_cause_is_found():
    assert names_without("removes_noise") == ["random layers"]
    assert names_without("loss") == ["division"]


def test_several_causes_are_found_together_and_no_others_are_named():
    assert names_without("removes_noise", "synchronizes") == ["batch normalization", "random layers"]
    assert names_without("removes_noise", "loss") == ["random layers", "division"]


def test_without_any_proof_the_leftover_is_reported():
    assert [cause.name for cause in find_causes([NORMALIZATION], lambda experiment: False, LEFT)] == ["unknown"]


def test_initial_weights_that_differ_are_named():
    one, other = (Record(initial={"kernel": np.full(3, value)}) for value in (1.0, 2.0))
    assert settings_that_differ(one, (one, other)) == ["the initial value of kernel is another on worker 1"]


def test_data_that_differ_are_named_without_a_proof():
    cause = leftover_of(Record(), (Record(),), [], data="1 row is another")
    assert (cause.name, cause.is_proven) == ("data", False)


def test_the_rule_for_losses_is_no_cause_in_a_loop_of_the_program():
    names = [cause.name for cause, _ in candidates(Record(is_loop=True, noisy=["dropout"]), (Record(),), data="")]
    assert names == ["random layers"]


def test_experiments_are_combined():
    assert combined([NORMALIZATION[1], SUMS[1]]) == Experiment(synchronizes=True, loss="global_sum")
