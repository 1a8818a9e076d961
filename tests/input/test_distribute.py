from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.input import InputState, distribute_files, write_tfrecords


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
        dataset = distribute_files(
            strategy, write(11, num_shards=2), parse_fn=number, global_batch_size=8, drop_remainder=True
        )
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

    def test_one_file_is_shuffled_among_the_whole_buffer(self, write):
        """Of a shard with one segment the window is the shard's whole share of the buffer."""
        dataset = distribute_files(
            create_strategy("one_device"), write(800), parse_fn=number, global_batch_size=8, shuffle_buffer=400
        )
        first = flat(values(itertools.islice(dataset, 40)))
        # Each of 8 shards of 100 shuffles among its first 50.
        assert max(value % 100 for value in first) > 40

    def test_as_many_canonical_shards_as_files_are_enough(self, write):
        files = write(64, num_shards=4)
        batches = global_batches(files, 1, steps=8, global_batch_size=8, policy="files")
        assert sorted(flat(batches)) == list(range(64))
        assert global_batches(files, 4, steps=8, global_batch_size=8, policy="files") == batches

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
        dataset_fn = distribute_files(
            Pipelines(pipelines), files, parse_fn=number, global_batch_size=pipelines, policy="files"
        )
        seen = [
            # Three epochs of what one pipeline has.
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
    def test_every_record_comes_once_one_of_each_shard_in_turn(self, name, options, count, write):
        strategy = create_strategy(name, **options)
        dataset = distribute_files(
            strategy, write(count, num_shards=1), parse_fn=number, global_batch_size=8, training=False
        )
        steps = steps_of_replicas(strategy, dataset)
        shards = [range(count * shard // 8, count * (shard + 1) // 8) for shard in range(8)]
        expected = [[shard[k] for shard in shards if k < len(shard)] for k in range(-(-count // 8))]
        assert [flat(step) for step in steps] == expected
        assert {len(parts) for parts in steps} == {strategy.num_replicas_in_sync}

    def test_fewer_records_than_replicas_leave_some_empty(self, write):
        strategy = create_strategy("mirrored", devices=4)
        dataset = distribute_files(strategy, write(2), parse_fn=number, global_batch_size=4, training=False)
        assert steps_of_replicas(strategy, dataset) == [[[], [0], [], [1]]]

    def test_structures_are_split_as_one(self, write):
        strategy = create_strategy("mirrored", devices=2)
        dataset = distribute_files(strategy, write(3), parse_fn=pair, global_batch_size=4, training=False)
        ((x, y),) = list(dataset)
        assert values(strategy.experimental_local_results(x["x"])) == [[0], [1, 2]]
        assert values(strategy.experimental_local_results(y)) == [[0], [-1, -2]]

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
    def test_workers_of_a_parameter_server_share_the_records(self, pipelines, write):
        dataset_fn = distribute_files(
            AsynchronousPipelines(), write(29), parse_fn=number, global_batch_size=4, training=False
        )
        batches = [values(dataset_fn(context)) for context in contexts(pipelines, pipelines)]
        assert sorted(flat(flat(batches))) == list(range(29))
        assert max(map(len, flat(batches))) <= 4


def global_batches(files, pipelines, *, steps=None, local=1, **options):
    """The records of each global batch, pipeline by pipeline, in their order."""
    replicas = pipelines * local
    dataset_fn = distribute_files(Pipelines(replicas), files, **{"parse_fn": number, **options})
    parts = [values(dataset_fn(context).take((steps or 10**6) * local)) for context in contexts(pipelines, replicas)]
    assert len({len(own) for own in parts}) == 1
    count = len(parts[0]) // local
    return [flat(flat(own[k * local : (k + 1) * local] for own in parts)) for k in range(count)]


@pytest.fixture
def unequal(tmp_path):
    """Files of 50, 3, 0, 120, 64, 65, 1, 200 and 77 records."""
    files, total = [], 0
    for i, size in enumerate([50, 3, 0, 120, 64, 65, 1, 200, 77]):
        files += write_tfrecords((b"%d" % j for j in range(total, total + size)), f"{tmp_path}/f{i}", num_shards=1)
        total += size
    return files


class TestOrder:
    """The k-th global batch does not depend on the cluster."""

    @pytest.mark.parametrize("policy", ["files", "records"])
    @pytest.mark.parametrize("training", [True, False])
    def test_it_is_the_same_on_1_2_4_and_8_pipelines(self, policy, training, unequal):
        def read(pipelines, **more):
            options = {"global_batch_size": 16, "policy": policy, "training": training}
            options |= {"seed": 3} if training else {}
            return global_batches(unequal, pipelines, steps=50 if training else None, **options, **more)

        expected = read(1)
        for pipelines in (2, 4, 8):
            assert read(pipelines) == expected
        assert [sorted(batch) for batch in read(2, local=2)] == [sorted(batch) for batch in expected]

    @pytest.mark.parametrize("policy", ["files", "records"])
    def test_a_start_at_any_step_on_any_cluster_goes_on_as_if_nothing_had_been(self, policy, unequal):
        options = {"global_batch_size": 16, "policy": policy}
        steps = distribute_files(Pipelines(1), unequal, parse_fn=number, **options).steps_per_epoch
        whole = global_batches(unequal, 1, steps=3 * steps, state=InputState(seed=4), **options)
        assert [sorted(flat(whole[epoch * steps : (epoch + 1) * steps])) for epoch in range(3)] == [
            list(range(580))
        ] * 3
        for begin, pipelines in [(1, 2), (steps - 1, 4), (steps, 1), (steps + 17, 8), (2 * steps + 5, 2)]:
            state = InputState(seed=4).after(begin, steps_per_epoch=steps)
            assert global_batches(unequal, pipelines, steps=6, state=state, **options) == whole[begin : begin + 6]

    def test_the_state_says_the_shards_that_keep_the_order_on_another_cluster(self, unequal):
        assert (
            distribute_files(Pipelines(1), unequal, parse_fn=number, global_batch_size=30).state.canonical_shards == 6
        )
        # 3 pipelines cannot share 8 shards: they take 12, and so may 1.
        of_three = global_batches(unequal, 3, steps=9, global_batch_size=48)
        state = InputState(canonical_shards=12)
        assert global_batches(unequal, 1, steps=9, global_batch_size=48, state=state) == of_three
        assert global_batches(unequal, 1, steps=9, global_batch_size=48) != of_three

    def test_the_last_rows_are_dealt_evenly_to_replicas(self, unequal):
        dataset_fn = distribute_files(
            Pipelines(4), unequal, parse_fn=number, global_batch_size=16, training=False, policy="files"
        )
        for context in contexts(2, 4):
            sizes = [len(batch) for batch in values(dataset_fn(context))]
            assert all(abs(one - other) <= 1 for one, other in zip(sizes[::2], sizes[1::2], strict=True))


class TestSources:
    def test_gzip(self, tmp_path):
        files = write_tfrecords(
            (b"%d" % i for i in range(50)), str(tmp_path / "packed"), num_shards=3, compression="GZIP"
        )
        assert sorted(flat(global_batches(files, 2, global_batch_size=4, training=False))) == list(range(50))

    def test_files_without_an_index_are_counted(self, unequal, tmp_path):
        expected = global_batches(unequal, 2, steps=40, global_batch_size=16)
        for index in tmp_path.glob("*.index.json"):
            index.unlink()
        assert global_batches(unequal, 2, steps=40, global_batch_size=16) == expected

    def test_another_reader(self, tmp_path):
        for i in range(3):
            (tmp_path / f"{i}.txt").write_text("\n".join(str(10 * i + j) for j in range(10)))
        options = {"reader": tf.data.TextLineDataset, "global_batch_size": 4}
        files = str(tmp_path / "*.txt")
        assert sorted(flat(global_batches(files, 2, training=False, **options))) == list(range(30))
        assert sorted(flat(global_batches(files, 1, steps=8, **options))) == list(range(30))

    def test_a_reader_of_structures(self, tmp_path):
        for i in range(2):
            (tmp_path / f"{i}.txt").write_text("\n".join(str(10 * i + j) for j in range(10)))

        def read(name):
            return tf.data.TextLineDataset(name).map(lambda line: (number(line), {"twice": 2 * number(line)}))

        dataset = distribute_files(
            create_strategy("one_device"),
            str(tmp_path / "*.txt"),
            parse_fn=lambda one, more: {"one": one, "twice": more["twice"]},
            reader=read,
            global_batch_size=3,
            training=False,
        )
        batches = list(dataset)
        assert sorted(flat(values(batch["one"] for batch in batches))) == list(range(20))
        assert flat(values(batch["twice"] for batch in batches)) == [
            2 * one for one in flat(values(batch["one"] for batch in batches))
        ]

    def test_replicate_gives_every_pipeline_everything_in_an_order_of_its_own(self, write):
        files = write(24, num_shards=3)
        dataset_fn = distribute_files(Pipelines(2), files, parse_fn=number, global_batch_size=8, policy="replicate")
        first, second = (flat(values(dataset_fn(context).take(6))) for context in contexts(2, 2))
        assert sorted(first) == sorted(second) == list(range(24))
        assert first != second

    def test_static_shapes_without_a_remainder(self, unequal):
        options = {"parse_fn": number, "global_batch_size": 16}
        (context,) = contexts(1, 1)
        fixed = distribute_files(Pipelines(1), unequal, drop_remainder=True, **options)
        assert fixed(context).element_spec.shape == [16]
        batches = flat(values(fixed(context).take(fixed.steps_per_epoch)))
        assert len(set(batches)) == len(batches) == 16 * fixed.steps_per_epoch


class TestCache:
    """Records kept in memory come in the same order, and their files are read once."""

    @pytest.mark.parametrize("policy", ["files", "records"])
    def test_the_order_is_that_of_the_files(self, policy, unequal):
        options = {"global_batch_size": 16, "policy": policy, "state": InputState(seed=2, step=7)}
        expected = global_batches(unequal, 2, steps=90, **options)
        assert global_batches(unequal, 2, steps=90, cache=True, **options) == expected

    def test_readers_of_structures_and_shards_of_nothing(self, tmp_path):
        (tmp_path / "a.txt").write_text("1\n2\n3")
        options = {
            "reader": lambda name: tf.data.TextLineDataset(name).map(lambda line: {"one": number(line)}),
            "parse_fn": lambda record: record["one"],
            "global_batch_size": 8,
            "training": False,
        }
        expected = global_batches(str(tmp_path / "a.txt"), 1, **options)
        assert sorted(flat(expected)) == [1, 2, 3]
        assert global_batches(str(tmp_path / "a.txt"), 1, cache=True, **options) == expected

    def test_training_goes_on_without_its_files(self, unequal):
        dataset = distribute_files(
            create_strategy("one_device"), unequal, parse_fn=number, global_batch_size=16, cache=True
        )
        batches = iter(dataset)
        seen = values([next(batches)])
        for name in unequal:
            os.unlink(name)
        seen += values(itertools.islice(batches, 2 * dataset.steps_per_epoch - 1))
        assert sorted(flat(seen)) == sorted(2 * list(range(580)))

    def test_evaluation_reads_its_files_for_the_first_time_only(self, unequal):
        strategy = create_strategy("mirrored", devices=2)
        dataset = distribute_files(strategy, unequal, parse_fn=number, global_batch_size=16, training=False, cache=True)
        first = steps_of_replicas(strategy, dataset)
        for name in unequal:
            os.unlink(name)
        assert steps_of_replicas(strategy, dataset) == first
        assert sorted(flat(flat(first))) == list(range(580))


class TestExamples:
    """parse_fn may give whatever Dataset.map takes."""

    @pytest.mark.parametrize("rows", [4, 80])
    def test_sparse_ragged_and_plain_values(self, rows, write):
        def parse(record):
            value = number(record)
            return {
                "sparse": tf.sparse.from_dense(tf.one_hot(value % 5, 5)),
                "ragged": tf.ragged.range([value % 3, 2]),
                "list": [value, 2 * value],
                "constant": 7,
                "text": record,
            }

        def by_hand(names):
            return tf.data.TFRecordDataset(names).map(parse).batch(rows)

        files = write(90)
        options = {"parse_fn": parse, "global_batch_size": rows, "state": InputState(canonical_shards=1)}
        dataset = distribute_files(create_strategy("one_device"), files, training=False, **options)
        for ours, expected in itertools.zip_longest(dataset, by_hand(files)):
            assert ours.keys() == expected.keys()
            for batch in (ours, expected):
                batch["sparse"], batch["ragged"] = tf.sparse.to_dense(batch["sparse"]), batch["ragged"].to_tensor()
            for name in expected:
                assert ours[name].dtype == expected[name].dtype
                assert ours[name].numpy().tolist() == expected[name].numpy().tolist()

    def test_random_augmentation_differs_between_records_and_epochs(self, write):
        dataset = distribute_files(
            create_strategy("one_device"), write(40), parse_fn=lambda _: tf.random.uniform([]), global_batch_size=40
        )
        drawn = flat(values(itertools.islice(dataset, 2)))
        assert len(set(drawn)) == 80

    def test_shapes_are_known(self, write):
        (context,) = contexts(1, 1)
        dataset_fn = distribute_files(
            Pipelines(1),
            write(8),
            parse_fn=lambda record: tf.io.decode_raw(tf.strings.substr(record, 0, 1), tf.uint8),
            global_batch_size=4,
            drop_remainder=True,
        )
        assert dataset_fn(context).element_spec.shape.as_list() == [4, 1]


class TestBadInput:
    def test_a_truncated_file_without_an_index(self, write, tmp_path):
        (name,) = write(100)
        (tmp_path / "numbers.index.json").unlink()
        content = Path(name).read_bytes()
        Path(name).write_bytes(content[:-3])
        message = rf"^expected whole records in '{name}', received {len(content) - 3} bytes that end within record 99, "
        with pytest.raises(ValueError, match=message):
            distribute_files(Pipelines(1), [name], parse_fn=number, global_batch_size=4)

    def test_a_file_that_its_index_does_not_fit(self, write):
        (name,) = write(100)
        Path(name).write_bytes(Path(name).read_bytes()[:-3])
        with pytest.raises(ValueError, match=rf"^expected \d+ bytes in '{name}', as its index says, received \d+; "):
            distribute_files(Pipelines(1), [name], parse_fn=number, global_batch_size=4)

    def test_a_truncated_compressed_file(self, tmp_path):
        (name,) = write_tfrecords(
            (os.urandom(99) for _ in range(100)), str(tmp_path / "packed"), num_shards=1, compression="GZIP"
        )
        (tmp_path / "packed.index.json").unlink()
        Path(name).write_bytes(Path(name).read_bytes()[:-2000])
        with pytest.raises(ValueError, match=rf"^expected whole records in '{name}', received a truncated or corrupt"):
            distribute_files(Pipelines(1), [name], parse_fn=number, global_batch_size=4)

    @pytest.fixture
    def corrupt(self, tmp_path):
        """100 records of 20 bytes, of which one of record 70 is wrong."""
        (name,) = write_tfrecords((b"%020d" % i for i in range(100)), str(tmp_path / "bad"), num_shards=1)
        content = bytearray(Path(name).read_bytes())
        content[70 * 36 + 20] ^= 255
        Path(name).write_bytes(content)
        return name

    @pytest.mark.parametrize("training", [True, False])
    def test_a_corrupt_record_is_named(self, corrupt, training):
        dataset = distribute_files(
            create_strategy("one_device"), [corrupt], parse_fn=number, global_batch_size=4, training=training
        )
        message = f"expected whole records, received one that cannot be read: record 70 of {corrupt}; write the file"
        with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
            for _ in itertools.islice(dataset, 25):
                pass

    def test_skipping_is_said_and_counted(self, corrupt, capfd):
        batches = global_batches([corrupt], 1, global_batch_size=1, training=False, skip_corrupt=True)
        assert sorted(flat(batches)) == list(range(70))
        assert f"tfdist.input: left out 30 records of '{corrupt}' from record 70 on, which" in capfd.readouterr().err

    def test_pipelines_that_skip_end_together(self, corrupt):
        """Without the lost records one of them would make fewer steps, and the others would wait for it."""
        batches = global_batches([corrupt], 2, global_batch_size=4, training=False, skip_corrupt=True)
        assert len(batches) == 25
        seen = flat(batches)
        assert len(set(seen)) == len(seen) < 100

    def test_a_first_record_that_is_corrupt(self, tmp_path):
        names = write_tfrecords((b"%d" % i for i in range(40)), str(tmp_path / "bad"), num_shards=2)
        content = bytearray(Path(names[0]).read_bytes())
        content[12] ^= 255
        Path(names[0]).write_bytes(content)
        options = {"global_batch_size": 3, "training": False}
        message = f"expected whole records, received one that cannot be read: record 0 of {names[0]}; write the file"
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            global_batches(names, 1, **options)
        assert set(flat(global_batches(names, 1, skip_corrupt=True, **options))) >= set(range(1, 40, 2))

    def test_a_reader_that_fails_is_named(self, tmp_path):
        (tmp_path / "lines.txt").write_text("1\n2\nthree\n4")
        options = {
            "reader": lambda name: tf.data.TextLineDataset(name).map(number),
            "parse_fn": lambda value: value,
            "global_batch_size": 2,
        }
        name = str(tmp_path / "lines.txt")
        with pytest.raises(ValueError, match=rf"^expected records in '{name}', but the reader raised InvalidArgument"):
            global_batches([name], 1, **options)

    def test_a_shape_that_nothing_says(self, write):
        """What Python works out has no static shape, not even a rank."""

        def parse(record):
            size = tf.cast(number(record) % 2 + 1, tf.int32)
            return tf.py_function(lambda n: tf.zeros([n]), [size], tf.float32)

        dataset = distribute_files(
            create_strategy("one_device"), write(9), parse_fn=parse, global_batch_size=4, training=False
        )
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"expected parse_fn to give shape \[1\] for every rec"
        ):
            list(dataset)

    def test_a_file_that_comes_twice(self, write):
        (name,) = write(9)
        with pytest.raises(ValueError, match=f"^expected every file once, received '{name}' twice; leave one out."):
            distribute_files(Pipelines(1), [name, name], parse_fn=number, global_batch_size=4)

    def test_a_file_that_is_not_there(self):
        with pytest.raises(ValueError, match=r"^expected a file at '/nowhere/at-all', found none; check the name."):
            distribute_files(Pipelines(1), ["/nowhere/at-all"], parse_fn=number, global_batch_size=4)

    def test_empty_files_are_said_and_left_out(self, tmp_path, caplog):
        files = write_tfrecords([b"1", b"2"], str(tmp_path / "few"), num_shards=4)
        assert sorted(flat(global_batches(files, 1, global_batch_size=2, training=False))) == [1, 2]
        assert f"received 2 empty files, the first is '{files[2]}'; they are left out" in caplog.text

    def test_fewer_records_than_a_global_batch(self, write):
        with pytest.raises(
            ValueError, match=r"^expected at least one global batch of 8 records in 2 files, received 7;"
        ):
            distribute_files(Pipelines(1), write(7, num_shards=2), parse_fn=number, global_batch_size=8)

    def test_nothing_to_evaluate(self, write):
        with pytest.raises(ValueError, match=r"^expected at least 1 records in 1 files, received 0; add files"):
            distribute_files(Pipelines(1), write(0), parse_fn=number, global_batch_size=8, training=False)

    def test_a_parse_fn_that_fails(self, write):
        files = write(9)

        def wrong(record):
            return tf.io.parse_tensor(record, tf.float32)

        message = rf"^expected parse_fn to take the records of '{files[0]}', but on the first it raised \w+Error: "
        with pytest.raises(ValueError, match=message):
            distribute_files(Pipelines(1), files, parse_fn=wrong, global_batch_size=4)

    def test_a_parse_fn_that_changes_shape(self, write):
        dataset = distribute_files(
            create_strategy("one_device"),
            write(9),
            parse_fn=lambda record: tf.zeros([number(record) + 1]),
            global_batch_size=4,
        )
        message = (
            r"expected parse_fn to give shape \[1\] for every record, as for the first, received \[\d\]; pad or crop"
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            next(iter(dataset))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"policy": "rows"}, "expected policy to be one of auto, files, records, replicate, received 'rows'"),
            (
                {"policy": "replicate", "training": False},
                "expected a policy that reads every record once for evaluation",
            ),
            (
                {"policy": "files", "state": InputState(canonical_shards=4)},
                "expected at least 4 files, one for each shard, received 1; write more files",
            ),
            (
                {"compression": "GZIP", "reader": tf.data.TextLineDataset},
                "expected compression or a reader, received b",
            ),
            (
                {"policy": "replicate", "state": InputState(canonical_shards=4)},
                "expected no canonical_shards with policy 'replicate', received 4; leave it out.",
            ),
            ({"shuffle_buffer": -1}, "expected shuffle_buffer to be 0 or more, received -1; 0 does not shuffle."),
            ({"num_threads": 0}, "expected num_threads to be at least 1, received 0; leave it out."),
            ({"compression": "ZIP"}, "expected compression to be '', 'GZIP' or None, received 'ZIP'; leave it out."),
            (
                {"training": False, "seed": 1},
                "expected no seed and no shuffle_buffer for evaluation, which does not shuffle, received 1 and None",
            ),
            ({"skip_corrupt": True, "drop_remainder": True}, "expected skip_corrupt without drop_remainder, whose ba"),
            (
                {"skip_corrupt": True, "reader": tf.data.TextLineDataset},
                "expected skip_corrupt without a reader, which may skip by itself, received both",
            ),
            ({"cache": True, "skip_corrupt": True}, "expected cache or skip_corrupt, received both; write the files"),
            ({"seed": 1, "state": InputState()}, "expected seed or state, received both, 1 and InputState(seed=0, "),
            (
                {"state": InputState(canonical_shards=3)},
                "expected canonical_shards to divide the 4 records of a step and to be a multiple of the 1 input pip",
            ),
        ],
    )
    def test_options(self, options, message, write):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            distribute_files(Pipelines(1), write(9), parse_fn=number, global_batch_size=4, **options)

    def test_a_step_of_workers_that_are_not_in_step(self, write):
        with pytest.raises(ValueError, match=r"^expected the beginning of an epoch on a parameter server, received st"):
            distribute_files(
                AsynchronousPipelines(), write(9), parse_fn=number, global_batch_size=4, state=InputState(step=1)
            )

    def test_a_state_beyond_the_epoch(self, write):
        with pytest.raises(ValueError, match=r"^expected a step below the 3 of an epoch, received 3; count with Input"):
            distribute_files(Pipelines(1), write(9), parse_fn=number, global_batch_size=4, state=InputState(step=3))

    @pytest.mark.parametrize("name", ["seed", "epoch", "step"])
    def test_a_state_before_the_beginning(self, name):
        with pytest.raises(ValueError, match=f"^expected {name} to be 0 or more, received -1; count from 0."):
            InputState(**{name: -1})


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
