"""The batches of distribute_files in training."""

from __future__ import annotations

import itertools

import pytest

from tests.input.pipelines import Pipelines, contexts, flat, global_batches, number, pair, steps_of_replicas, values
from tfdist import create_strategy
from tfdist.input import distribute_files


@pytest.mark.parametrize(
    ("name", "options", "rows"),
    [
        pytest.param("one_device", {}, 8, marks=pytest.mark.full),
        ("mirrored", {"devices": 2}, 4),
        pytest.param("mirrored", {"devices": 4}, 2, marks=pytest.mark.full),
        pytest.param("central_storage", {"devices": 2}, 4, marks=pytest.mark.full),
        ("multi_worker_mirrored", {}, 8),
    ],
)
def test_training_data_never_ends_and_every_replica_gets_a_full_batch(name, options, rows, write):
    strategy = create_strategy(name, **options)
    dataset = distribute_files(
        strategy, write(11, num_shards=2), parse_fn=number, global_batch_size=8, drop_remainder=True
    )
    for batch in itertools.islice(dataset, 10):
        parts = strategy.experimental_local_results(batch)
        assert [len(part) for part in parts] == [rows] * strategy.num_replicas_in_sync


def test_each_epoch_has_every_record_once_in_another_order(write):
    strategy = create_strategy("one_device")
    dataset = distribute_files(strategy, write(12, num_shards=3), parse_fn=number, global_batch_size=4)
    batches = flat(values(itertools.islice(dataset, 9)))
    epochs = [batches[:12], batches[12:24], batches[24:]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize(
    ("name", "options"), [pytest.param("one_device", {}, marks=pytest.mark.full), ("mirrored", {"devices": 2})]
)
def test_the_seed_decides_the_order_of_several_epochs(name, options, write):
    strategy = create_strategy(name, **options)
    files = write(24, num_shards=4)

    def epochs(seed):
        dataset = distribute_files(strategy, files, parse_fn=number, global_batch_size=4, seed=seed)
        return [steps_of_replicas(strategy, [batch])[0] for batch in itertools.islice(dataset, 18)]

    assert epochs(0) == epochs(0)
    assert epochs(7) == epochs(7)
    assert epochs(0) != epochs(7)


def test_a_single_file_is_shuffled_with_the_whole_buffer(write):
    """If a shard has one segment, the window is as large as the shard's share of the buffer."""
    dataset = distribute_files(
        create_strategy("one_device"), write(800), parse_fn=number, global_batch_size=8, shuffle_buffer=400
    )
    first = flat(values(itertools.islice(dataset, 40)))
    # Each of 8 shards has 100 records, and the first window shuffles its first 50.
    assert max(value % 100 for value in first) > 40


@pytest.mark.full  # test_order.py goes on with this policy on other numbers of pipelines.
def test_four_files_with_the_policy_files_give_four_canonical_shards(write):
    files = write(64, num_shards=4)
    batches = global_batches(files, 1, steps=8, global_batch_size=8, policy="files")
    assert sorted(flat(batches)) == list(range(64))
    assert global_batches(files, 4, steps=8, global_batch_size=8, policy="files") == batches


def test_five_files_with_the_policy_files_are_enough_for_three_pipelines(write):
    """Three canonical shards are chosen, since there are fewer files than six shards."""
    batches = global_batches(write(60, num_shards=5), 3, steps=5, global_batch_size=12, policy="files")
    assert len(set(flat(batches))) == len(flat(batches))


def test_batches_have_the_structure_that_parse_fn_returns(write):
    strategy = create_strategy("one_device")
    x, y = next(iter(distribute_files(strategy, write(4), parse_fn=pair, global_batch_size=4)))
    assert x["x"].numpy().tolist() == (-y).numpy().tolist()


@pytest.mark.parametrize(
    ("num_shards", "pipelines"), [(5, 2), *(pytest.param(*one, marks=pytest.mark.full) for one in ((4, 2), (3, 3)))]
)
def test_pipelines_read_different_files_if_there_are_enough(num_shards, pipelines, write):
    files = write(4 * num_shards, num_shards=num_shards)
    whole_files = [set(range(shard, 4 * num_shards, num_shards)) for shard in range(num_shards)]
    dataset_fn = distribute_files(
        Pipelines(pipelines), files, parse_fn=number, global_batch_size=pipelines, policy="files"
    )
    seen = [
        # Each pipeline is read for at least three epochs.
        set(flat(values(dataset_fn(context).take(12 * num_shards))))
        for context in contexts(pipelines, pipelines)
    ]
    assert set.union(*seen) == set(range(4 * num_shards))
    assert sum(map(len, seen)) == 4 * num_shards
    assert all(file <= own or not file & own for own in seen for file in whole_files)


@pytest.mark.parametrize(("num_shards", "pipelines"), [pytest.param(1, 2, marks=pytest.mark.full), (2, 3)])
def test_pipelines_read_different_records_if_there_are_fewer_files(num_shards, pipelines, write):
    files = write(12, num_shards=num_shards)
    dataset_fn = distribute_files(Pipelines(pipelines), files, parse_fn=number, global_batch_size=2 * pipelines)
    share = 12 // pipelines
    epochs = [flat(values(dataset_fn(context).take(3 * share // 2))) for context in contexts(pipelines, pipelines)]
    for epoch in range(3):
        parts = [own[epoch * share : (epoch + 1) * share] for own in epochs]
        assert sorted(flat(parts)) == list(range(12))


def test_a_batch_of_a_pipeline_is_for_one_of_its_replicas(write):
    dataset_fn = distribute_files(Pipelines(6), write(24), parse_fn=number, global_batch_size=12)
    for context in contexts(3, 6):
        assert {len(batch) for batch in dataset_fn(context).take(20)} == {2}


def test_replicate_gives_every_pipeline_all_records_in_an_order_of_its_own(write):
    files = write(24, num_shards=3)
    dataset_fn = distribute_files(Pipelines(2), files, parse_fn=number, global_batch_size=8, policy="replicate")
    first, second = (flat(values(dataset_fn(context).take(6))) for context in contexts(2, 2))
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second


def test_shapes_are_static_with_drop_remainder(unequal):
    options = {"parse_fn": number, "global_batch_size": 16}
    (context,) = contexts(1, 1)
    fixed = distribute_files(Pipelines(1), unequal, drop_remainder=True, **options)
    assert fixed(context).element_spec.shape == [16]
    batches = flat(values(fixed(context).take(fixed.steps_per_epoch)))
    assert len(set(batches)) == len(batches) == 16 * fixed.steps_per_epoch
