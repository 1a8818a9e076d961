"""tfdist verify finds the programs in the manner of keras.io's examples equal to one device."""

from __future__ import annotations

import pytest

from tests.end_to_end.test_public_programs import PROGRAMS
from tests.processes import ROOT
from tfdist.verify.values import topologies
from tfdist.verify.verification import Verification, Verifier

# Part of the gradient of CTC is computed in float32.
ROUNDED = {"ctc_compiled"}


def verified(name: str, *, workers: int) -> Verification:
    verifier = Verifier([str(ROOT / "tests" / "verify" / "public.py"), name], timeout_seconds=180, say=print)
    return verifier.verify(topologies(replicas=(2,), workers=workers))


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_equal_on_replicas_and_workers(name: str) -> None:
    result = verified(name, workers=2)
    assert result.is_equal and result.floatx == "float64" and result.steps >= 5
    causes = {cause.name for verdict in result.verdicts for cause in verdict.causes}
    assert causes <= ({"rounding"} if name in ROUNDED else set())


@pytest.mark.parametrize("name", ["gan_on_batch", pytest.param("strategy_run_loop", marks=pytest.mark.full)])
def test_a_program_without_fit_is_recorded(name: str) -> None:
    result = verified(name, workers=0)
    assert result.is_equal and result.steps >= 5
