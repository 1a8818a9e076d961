from __future__ import annotations

import itertools
import re

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.input import distribute_files, write_tfrecords


def number(record):
    return tf.strings.to_number(record, tf.int64)


def pair(record):
    return {"x": number(record)}, -number(record)


class Pipelines:
    """Stands for a strategy whose dataset function is called by hand, once for each input pipeline."""

    def __init__(self, replicas):
        self.num_replicas_in_sync = replicas

    def distribute_datasets_from_function(self, dataset_fn):
        return dataset_fn


class AsynchronousPipelines(tf.distribute.ParameterServerStrategy):
    """The same for a parameter server, whose workers are not in step."""

    def __init__(self):
        # The base class would look for a cluster.
        self.num_pipelines = 0

    @property
    def num_replicas_in_sync(self):
        return 1

    def distribute_datasets_from_function(self, dataset_fn, options=None):
        return dataset_fn


def contexts(pipelines, replicas):
    return [tf.distribute.InputContext(pipelines, own, replicas) for own in range(pipelines)]


def values(batches):
    return [batch.numpy().tolist() for batch in batches]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


@pytest.fixture
def write(tmp_path):
    def write(count, num_shards=1):
        return write_tfrecords((b"%d" % i for i in range(count)), str(tmp_path / "numbers"), num_shards=num_shards)

    return write


def steps_of_replicas(strategy, dataset):
    """The batches of every step, replica by replica."""
    return [values(strategy.experimental_local_results(batch)) for batch in dataset]


class TestTraining:
    @pytest.mark.parametrize(
        ("name", "options", "rows"),
        [
            ("one_device", {}, 8),
            ("mirrored", {"devices": 2}, 4),
            ("mirrored", {"devices": 4}, 2),
            ("central_storage", {"devices": 2}, 4),
            ("multi_worker_mirrored", {}, 8),
        ],
    )
    def test_it_never_ends_and_every_replica_gets_a_full_batch(self, name, options, rows, write):
        strategy = create_strategy(name, **options)
        dataset = distribute_files(strategy, write(11, num_shards=2), parse_fn=number, global_batch_size=8)
        for batch in itertools.islice(dataset, 10):
            parts = strategy.experimental_local_results(batch)
            assert [len(part) for part in parts] == [rows] * strategy.num_replicas_in_sync

    def test_an_epoch_is_every_record_once_in_another_order(self, write):
        strategy = create_strategy("one_device")
        dataset = distribute_files(strategy, write(12, num_shards=3), parse_fn=number, global_batch_size=4)
        batches = flat(values(itertools.islice(dataset, 9)))
        epochs = [batches[:12], batches[12:24], batches[24:]]
        assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 3
        assert len({tuple(epoch) for epoch in epochs}) == 3

    @pytest.mark.parametrize(("name", "options"), [("one_device", {}), ("mirrored", {"devices": 2})])
    def test_the_seed_decides_the_order_of_several_epochs(self, name, options, write):
        strategy = create_strategy(name, **options)
        files = write(24, num_shards=4)

        def epochs(seed):
            dataset = distribute_files(strategy, files, parse_fn=number, global_batch_size=4, seed=seed)
            return [steps_of_replicas(strategy, [batch])[0] for batch in itertools.islice(dataset, 18)]

        assert epochs(0) == epochs(0)
        assert epochs(7) == epochs(7)
        assert epochs(0) != epochs(7)

    def test_the_parsed_structure_is_kept(self, write):
        strategy = create_strategy("one_device")
        x, y = next(iter(distribute_files(strategy, write(4), parse_fn=pair, global_batch_size=4)))
        assert x["x"].numpy().tolist() == (-y).numpy().tolist()

    def test_a_pattern_finds_files(self, write, tmp_path):
        write(6, num_shards=3)
        strategy = create_strategy("one_device")
        pattern = str(tmp_path / "numbers-*.tfrecord")
        dataset = distribute_files(strategy, pattern, parse_fn=number, global_batch_size=6)
        assert sorted(next(iter(dataset)).numpy()) == list(range(6))

    @pytest.mark.parametrize(("num_shards", "pipelines"), [(4, 2), (5, 2), (3, 3)])
    def test_pipelines_share_the_files_where_there_are_enough(self, num_shards, pipelines, write):
        files = write(4 * num_shards, num_shards=num_shards)
        whole_files = [set(range(shard, 4 * num_shards, num_shards)) for shard in range(num_shards)]
        dataset_fn = distribute_files(Pipelines(pipelines), files, parse_fn=number, global_batch_size=pipelines)
        seen = [
            # Three passes over what one pipeline has.
            set(flat(values(dataset_fn(context).take(12 * num_shards))))
            for context in contexts(pipelines, pipelines)
        ]
        assert set.union(*seen) == set(range(4 * num_shards))
        assert sum(map(len, seen)) == 4 * num_shards
        assert all(file <= own or not file & own for own in seen for file in whole_files)

    @pytest.mark.parametrize(("num_shards", "pipelines"), [(1, 2), (2, 3)])
    def test_pipelines_share_the_records_where_there_are_fewer_files(self, num_shards, pipelines, write):
        files = write(12, num_shards=num_shards)
        dataset_fn = distribute_files(Pipelines(pipelines), files, parse_fn=number, global_batch_size=2 * pipelines)
        share = 12 // pipelines
        epochs = [flat(values(dataset_fn(context).take(3 * share // 2))) for context in contexts(pipelines, pipelines)]
        for epoch in range(3):
            parts = [own[epoch * share : (epoch + 1) * share] for own in epochs]
            assert sorted(flat(parts)) == list(range(12))

    def test_a_pipeline_batches_for_one_of_its_replicas(self, write):
        dataset_fn = distribute_files(Pipelines(6), write(24), parse_fn=number, global_batch_size=12)
        for context in contexts(3, 6):
            assert {len(batch) for batch in dataset_fn(context).take(20)} == {2}


class TestEvaluation:
    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("one_device", {}),
            ("mirrored", {"devices": 2}),
            ("mirrored", {"devices": 4}),
            ("central_storage", {"devices": 2}),
            ("multi_worker_mirrored", {}),
        ],
    )
    @pytest.mark.parametrize("count", [1, 3, 8, 11, 13, 16])
    def test_every_record_comes_once_in_order(self, name, options, count, write):
        strategy = create_strategy(name, **options)
        dataset = distribute_files(
            strategy, write(count, num_shards=1), parse_fn=number, global_batch_size=8, training=False
        )
        steps = steps_of_replicas(strategy, dataset)
        assert flat(flat(steps)) == list(range(count))
        assert len(steps) == -(-count // 8)
        assert {len(parts) for parts in steps} == {strategy.num_replicas_in_sync}

    def test_fewer_records_than_replicas_leave_some_empty(self, write):
        strategy = create_strategy("mirrored", devices=4)
        dataset = distribute_files(strategy, write(2), parse_fn=number, global_batch_size=4, training=False)
        assert steps_of_replicas(strategy, dataset) == [[[0], [1], [], []]]

    def test_structures_are_split_as_one(self, write):
        strategy = create_strategy("mirrored", devices=2)
        dataset = distribute_files(strategy, write(3), parse_fn=pair, global_batch_size=4, training=False)
        ((x, y),) = list(dataset)
        assert values(strategy.experimental_local_results(x["x"])) == [[0, 1], [2]]
        assert values(strategy.experimental_local_results(y)) == [[0, -1], [-2]]

    @pytest.mark.parametrize(("pipelines", "replicas"), [(1, 1), (2, 2), (3, 3), (2, 4), (3, 6)])
    @pytest.mark.parametrize("count", [1, 12, 17, 29])
    def test_every_pipeline_has_as_many_batches_and_each_record_is_in_one(self, pipelines, replicas, count, write):
        files = write(count, num_shards=2)
        dataset_fn = distribute_files(Pipelines(replicas), files, parse_fn=number, global_batch_size=12, training=False)
        batches = [values(dataset_fn(context)) for context in contexts(pipelines, replicas)]
        local = replicas // pipelines
        assert {len(own) for own in batches} == {-(-count // 12) * local}
        assert sorted(flat(flat(batches))) == list(range(count))

    @pytest.mark.parametrize("pipelines", [1, 2, 3])
    def test_workers_of_a_parameter_server_share_the_batches(self, pipelines, write):
        dataset_fn = distribute_files(
            AsynchronousPipelines(), write(29), parse_fn=number, global_batch_size=4, training=False
        )
        batches = [values(dataset_fn(context)) for context in contexts(pipelines, pipelines)]
        assert sorted(flat(flat(batches))) == list(range(29))
        assert sum(map(len, batches)) == 8


class TestRefusals:
    @pytest.mark.parametrize(
        ("replicas", "batch", "advice"), [(2, 5, 4), (4, 3, 4), (4, 2, 4), (3, 100, 99), (1, 0, 1), (2, -2, 2)]
    )
    def test_a_batch_that_the_replicas_do_not_divide(self, replicas, batch, advice, write):
        message = (
            f"expected global_batch_size to be a multiple of the {replicas} replicas, received {batch}; take {advice}."
        )
        with pytest.raises(ValueError, match=re.escape(message)):
            distribute_files(Pipelines(replicas), write(3), parse_fn=number, global_batch_size=batch)

    @pytest.mark.parametrize("files", ["/nowhere/at-all-*.tfrecord", []])
    @pytest.mark.parametrize("training", [True, False])
    def test_no_files(self, files, training):
        message = f"expected files for {files!r}, found none; check the pattern."
        with pytest.raises(ValueError, match=re.escape(message)):
            distribute_files(Pipelines(1), files, parse_fn=number, global_batch_size=1, training=training)
