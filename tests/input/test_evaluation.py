"""The batches of distribute_files in evaluation."""

from __future__ import annotations

import pytest

from tests.input.pipelines import (
    AsynchronousPipelines,
    Pipelines,
    contexts,
    flat,
    number,
    pair,
    steps_of_replicas,
    values,
)
from tfdist import create_strategy
from tfdist.input import distribute_files


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("one_device", {}, marks=pytest.mark.full),
        pytest.param("mirrored", {"devices": 2}, marks=pytest.mark.full),
        ("mirrored", {"devices": 4}),
        pytest.param("central_storage", {"devices": 2}, marks=pytest.mark.full),
        ("multi_worker_mirrored", {}),
    ],
)
@pytest.mark.parametrize("count", [11, 16, *(pytest.param(count, marks=pytest.mark.full) for count in (1, 3, 8, 13))])
def test_each_record_comes_once_and_a_batch_has_one_record_of_each_shard(name, options, count, write):
    strategy = create_strategy(name, **options)
    dataset = distribute_files(
        strategy, write(count, num_shards=1), parse_fn=number, global_batch_size=8, training=False
    )
    steps = steps_of_replicas(strategy, dataset)
    shards = [range(count * shard // 8, count * (shard + 1) // 8) for shard in range(8)]
    expected = [[shard[k] for shard in shards if k < len(shard)] for k in range(-(-count // 8))]
    assert [flat(step) for step in steps] == expected
    assert {len(parts) for parts in steps} == {strategy.num_replicas_in_sync}


def test_some_replicas_get_an_empty_batch_if_there_are_fewer_records_than_rows(write):
    strategy = create_strategy("mirrored", devices=4)
    dataset = distribute_files(strategy, write(2), parse_fn=number, global_batch_size=4, training=False)
    assert steps_of_replicas(strategy, dataset) == [[[], [0], [], [1]]]


def test_all_parts_of_a_structure_are_split_in_the_same_way(write):
    strategy = create_strategy("mirrored", devices=2)
    dataset = distribute_files(strategy, write(3), parse_fn=pair, global_batch_size=4, training=False)
    ((x, y),) = list(dataset)
    assert values(strategy.experimental_local_results(x["x"])) == [[0], [1, 2]]
    assert values(strategy.experimental_local_results(y)) == [[0], [-1, -2]]


@pytest.mark.parametrize(
    ("pipelines", "replicas"),
    [(2, 4), *(pytest.param(*one, marks=pytest.mark.full) for one in ((1, 1), (2, 2), (3, 3), (3, 6)))],
)
@pytest.mark.parametrize("count", [1, 17, *(pytest.param(count, marks=pytest.mark.full) for count in (12, 29))])
def test_pipelines_have_equally_many_batches_and_each_record_is_in_one(pipelines, replicas, count, write):
    files = write(count, num_shards=2)
    dataset_fn = distribute_files(Pipelines(replicas), files, parse_fn=number, global_batch_size=12, training=False)
    batches = [values(dataset_fn(context)) for context in contexts(pipelines, replicas)]
    local = replicas // pipelines
    assert {len(own) for own in batches} == {-(-count // 12) * local}
    assert sorted(flat(flat(batches))) == list(range(count))


@pytest.mark.parametrize("pipelines", [*(pytest.param(count, marks=pytest.mark.full) for count in (1, 2)), 3])
def test_workers_of_a_parameter_server_share_the_records(pipelines, write):
    dataset_fn = distribute_files(
        AsynchronousPipelines(), write(29), parse_fn=number, global_batch_size=4, training=False
    )
    batches = [values(dataset_fn(context)) for context in contexts(pipelines, pipelines)]
    assert sorted(flat(flat(batches))) == list(range(29))
    assert max(map(len, flat(batches))) <= 4
