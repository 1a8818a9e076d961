"""tfdist verify leaves files of a training alone, and judges programs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import ROOT
from tfdist.verify.values import topologies
from tfdist.verify.verification import Verdict, Verification, Verifier

ORDINARY = str(ROOT / "tests" / "verify" / "ordinary.py")


def verified(name: str) -> Verification:
    verifier = Verifier([ORDINARY, name], steps=4, timeout_seconds=180, say=print)
    return verifier.verify(topologies(replicas=(2,), workers=0))


def verdict_on(name: str) -> Verdict:
    result = verified(name)
    assert not result.error
    return result.verdicts[0]


@pytest.mark.parametrize("name", ["callbacks_with_files", pytest.param("resumable_loop", marks=pytest.mark.full)])
def test_files_of_a_training_are_neither_read_nor_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("a long training")
    verdict = verdict_on(name)
    assert verdict.is_equal and not verdict.causes
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    assert (tmp_path / "log.csv").read_text() == "a long training"


@pytest.mark.full
def test_a_callback_finds_the_result_of_the_validation() -> None:
    result = verified("callback_that_reads_the_validation")
    assert result.is_equal and result.floatx == "float64"


def test_types_that_the_program_sets_do_not_make_it_less_precise() -> None:
    result = verified("mixed_precision")
    assert result.is_equal and result.floatx == "float64"
    assert [verdict.causes for verdict in result.verdicts] == [()]


def test_a_program_that_does_not_repeat_its_numbers_is_not_equal() -> None:
    verdict = verdict_on("data_without_a_seed")
    assert not verdict.is_equal
    assert [(cause.name, cause.is_proven) for cause in verdict.causes] == [("not repeatable", True)]
    assert "first in the rows of the batches; seed all that is drawn" in verdict.causes[0].text


def test_random_numbers_of_a_layer_and_of_a_train_step_are_named() -> None:
    verdict = verdict_on("random_numbers_of_its_own")
    assert [(cause.name, cause.is_proven) for cause in verdict.causes] == [("random numbers", True)]
    assert "call (ordinary.py, line " in verdict.causes[0].text
    assert verdict.causes[0].text.count("train_step (ordinary.py, line ") == 2


@pytest.mark.full
def test_other_rows_of_shuffled_data_are_named() -> None:
    verdict = verdict_on("replicas_read_other_shuffled_rows")
    assert [(cause.name, cause.is_proven) for cause in verdict.causes] == [("data", True)]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("loop_with_a_mean_of_divided_losses", "training_loss"),
        pytest.param("loop_that_reduces_divided_losses_to_their_mean", "reduced 1", marks=pytest.mark.full),
    ],
)
def test_numbers_that_a_loop_shows_are_compared(name: str, number: str) -> None:
    verdict = verdict_on(name)
    assert verdict.comparison is not None
    assert [(one.kind, one.name) for one in verdict.comparison.differences] == [("metric", number)]
    assert [(cause.name, cause.is_proven) for cause in verdict.causes] == [("metrics", False)]


@pytest.mark.full
def test_variables_that_no_model_has_are_compared() -> None:
    verdict = verdict_on("loop_of_variables_without_a_model")
    assert verdict.comparison is not None and verdict.comparison.differences[0].kind == "weight"
