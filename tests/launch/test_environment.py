from __future__ import annotations

import json
import os

import pytest

from tfdist.launch.environment import rank_env, tf_config, thread_env, thread_share
from tfdist.launch.spec import LaunchSpec, Rank

WORKERS = [Rank("worker", 0), Rank("worker", 1)]
PS_CLUSTER = [Rank("chief", 0), *WORKERS, Rank("ps", 0), Rank("evaluator", 0)]


def test_tf_config_names_every_rank_of_the_cluster_and_the_own_task() -> None:
    ports = {rank: 1000 + number for number, rank in enumerate(PS_CLUSTER[:-1])}
    assert json.loads(tf_config(WORKERS[1], ports, host="localhost")) == {
        "cluster": {
            "chief": ["localhost:1000"],
            "worker": ["localhost:1001", "localhost:1002"],
            "ps": ["localhost:1003"],
        },
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize(
    ("ranks", "cores", "requested", "share"),
    [
        (WORKERS, 2, None, 1),
        (WORKERS, 9, None, 4),
        (WORKERS, 1, None, 1),
        ([Rank("chief", 0), *WORKERS], 6, None, 2),
        (PS_CLUSTER, 6, None, 3),
        ([Rank("evaluator", 0)], 4, None, 4),
        (WORKERS, 2, 7, 7),
        (WORKERS, 2, 0, 0),
    ],
)
def test_cpus_are_divided_among_the_ranks_that_compute(
    ranks: list[Rank], cores: int, requested: int | None, share: int
) -> None:
    assert thread_share(ranks, cores=cores, requested=requested) == share


def test_ranks_of_a_ps_cluster_have_eight_interop_threads_and_only_computing_ones_are_bounded() -> None:
    variables = {rank.label: thread_env(rank, PS_CLUSTER, share=1) for rank in PS_CLUSTER}
    assert {one["TF_NUM_INTEROP_THREADS"] for one in variables.values()} == {"8"}
    bounded = [label for label, one in variables.items() if one.get("TF_NUM_INTRAOP_THREADS") == "1"]
    assert bounded == ["worker 0", "worker 1", "evaluator 0"]


def test_a_share_of_zero_sets_nothing() -> None:
    assert thread_env(WORKERS[0], WORKERS, share=0) == {}


def test_what_the_user_set_wins_over_the_division_and_the_environment_is_left_alone() -> None:
    spec = LaunchSpec(command=("x",), workers=2, env={"A": "from --env", "TF_NUM_INTEROP_THREADS": "5"})
    base = {"OMP_NUM_THREADS": "3", "A": "old", "B": "kept"}
    before = dict(os.environ)
    env = rank_env(WORKERS[0], spec, ports={}, share=1, launch_id="id", base=base)
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["TF_NUM_INTEROP_THREADS"] == "5"
    assert env["TF_NUM_INTRAOP_THREADS"] == "1"
    assert (env["A"], env["B"], env["PYTHONUNBUFFERED"], env["TFDIST_LAUNCH_ID"]) == ("from --env", "kept", "1", "id")
    assert base == {"OMP_NUM_THREADS": "3", "A": "old", "B": "kept"}
    assert dict(os.environ) == before
