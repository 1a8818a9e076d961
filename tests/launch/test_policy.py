from __future__ import annotations

from tfdist.launch.policy import first_failure, winding_down
from tfdist.launch.report import RankExit
from tfdist.launch.spec import Rank

CHIEF, W0, W1, PS, EVALUATOR = (
    Rank("chief", 0),
    Rank("worker", 0),
    Rank("worker", 1),
    Rank("ps", 0),
    Rank("evaluator", 0),
)


def ended(rank: Rank, seconds: float, code: int = 0, *, told: bool = False) -> RankExit:
    return RankExit(rank=rank, code=code, seconds=seconds, told=told)


def test_the_earliest_failure_is_the_first_whatever_the_order_in_which_it_was_noticed() -> None:
    first = first_failure([W0, W1], [ended(W0, 1.1, 1), ended(W1, 1.0, 3)])
    assert first is not None
    assert first.rank == W1


def test_ranks_that_were_told_to_end_have_not_failed() -> None:
    assert first_failure([W0, W1], [ended(W0, 1.0, -15, told=True)]) is None


def test_servants_that_lose_their_coordinator_after_its_success_have_not_failed() -> None:
    ranks = [CHIEF, W0, PS, EVALUATOR]
    assert first_failure(ranks, [ended(CHIEF, 1.0), ended(W0, 1.1, 1), ended(PS, 1.2, 1)]) is None
    assert first_failure(ranks, [ended(W0, 0.9, 1), ended(CHIEF, 1.0)]) is not None
    assert first_failure(ranks, [ended(CHIEF, 1.0), ended(EVALUATOR, 1.1, 1)]) is not None


def test_without_parameter_servers_workers_are_waited_for_without_end() -> None:
    assert winding_down([CHIEF, W0, W1], [ended(CHIEF, 1.0), ended(W0, 1.0)]) == []


def test_a_worker_that_fails_after_the_chief_has_failed_the_job_without_parameter_servers() -> None:
    assert first_failure([CHIEF, W0], [ended(CHIEF, 1.0), ended(W0, 2.0, 1)]) is not None


def test_the_coordinators_success_winds_down_its_servants_then_the_evaluator() -> None:
    ranks = [CHIEF, W0, PS, EVALUATOR]
    exits = [ended(CHIEF, 1.0)]
    assert winding_down(ranks, exits) == [W0, PS]
    assert winding_down(ranks, [*exits, ended(W0, 2.0), ended(PS, 2.0, -15, told=True)]) == [EVALUATOR]
    assert winding_down(ranks, []) == []


def test_an_evaluator_alone_is_not_wound_down() -> None:
    assert winding_down([EVALUATOR], []) == []
