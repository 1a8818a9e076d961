"""The policy `local`: each worker reads its own files. tests/end_to_end/test_local_files.py has two workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.input.pipelines import AsynchronousPipelines, Pipelines, flat, number, values
from tfdist import create_strategy
from tfdist.input import InputState, distribute_files
from tfdist.input.index import read_indexes
from tfdist.input.layout import Layout
from tfdist.input.local import Counted, check_local, plan_of
from tfdist.input.plan import File
from tfdist.input.read import Source


@pytest.mark.parametrize("cache", [False, True])
def test_one_worker_reads_all_of_its_files_once(cache, write):
    strategy = create_strategy("one_device")
    options = {"parse_fn": number, "global_batch_size": 8, "policy": "local", "cache": cache}
    test = distribute_files(strategy, write(27, num_shards=4), training=False, **options)
    assert sorted(flat(values(test))) == list(range(27))
    assert (test.steps_per_epoch, test.plan.policy, test.plan.records) == (4, "local", (27,))
    assert test.state == InputState(canonical_shards=1)


def test_training_goes_on_where_a_position_says(write):
    strategy = create_strategy("one_device")
    files = write(32, num_shards=4)
    options = {"parse_fn": number, "global_batch_size": 4, "policy": "local"}
    whole = distribute_files(strategy, files, seed=3, **options)
    batches = values(batch for _, batch in zip(range(12), whole, strict=False))
    later = whole.at(whole.state.after(5, steps_per_epoch=8))
    assert values(batch for _, batch in zip(range(7), later, strict=False)) == batches[5:]
    assert sorted(flat(batches[:8])) == list(range(32))


def test_an_index_lets_a_worker_seek_in_its_own_files(write):
    own = [File(name=name, size=1, records=8) for name in write(16, num_shards=2)]
    indexes = read_indexes([file.name for file in own])
    counted = Counted(files=own, indexes=indexes, how="", source=Source(), parse=None, others=((2, 16, 2), (9, 40, 9)))
    assert plan_of(counted)[1].seekable


counts = st.lists(st.integers(1, 200), min_size=1, max_size=5)


@given(counts, st.integers(1, 8), st.booleans())
def test_all_workers_make_the_same_steps_and_use_each_record_once(
    records: list[int], rows: int, drop_remainder: bool
) -> None:
    layouts = []
    for worker, own in enumerate(records):
        files = [File(name="a", size=own // 2, records=own // 2), File(name="b", size=1, records=own - own // 2)]
        numbers = tuple((2, one, one) for one in records)
        counted = Counted(files=files, indexes={}, how="", source=Source(), parse=None, others=numbers, worker=worker)
        options = {"policy": "local", "global_batch_size": rows * len(records), "num_pipelines": len(records)}
        try:
            layout = Layout.of(
                files,
                {},
                divided=plan_of(counted),
                canonical_shards=None,
                drop_remainder=drop_remainder,
                in_sync=True,
                records_may_be_lost=False,
                **options,
            )
        except ValueError:
            assert drop_remainder and min(records) < rows
            return
        layouts.append(layout)
        assert layout.table.length[worker].sum() == own
    (steps,) = {layout.steps for layout in layouts}
    assert {layout.rows_per_shard for layout in layouts} == {rows}
    assert {layout.all_steps_full for layout in layouts} == {all(one // rows >= steps for one in records)}
    expected = [one // rows if drop_remainder else -(-one // rows) for one in records]
    assert steps == (min(expected) if drop_remainder else max(expected))


def test_workers_that_do_not_run_the_program_are_refused(write):
    with pytest.raises(ValueError, match="expected a strategy whose workers run the program themselves"):
        distribute_files(AsynchronousPipelines(), write(8), parse_fn=number, global_batch_size=2, policy="local")


def test_a_position_of_another_number_of_workers_is_refused(write):
    state = InputState(canonical_shards=2)
    with pytest.raises(ValueError, match="expected a position of 1 worker with the policy 'local', received one of 2"):
        distribute_files(Pipelines(1), write(8), parse_fn=number, global_batch_size=2, policy="local", state=state)
    check_local(Pipelines(1), InputState(), num_pipelines=1)


def test_a_worker_without_records_is_named(write):
    with pytest.raises(
        ValueError, match="expected records on every worker with the policy 'local', received none on w"
    ):
        distribute_files(Pipelines(1), write(0), parse_fn=number, global_batch_size=2, policy="local")


def test_fewer_records_than_a_global_batch_are_refused(write):
    files = write(7, num_shards=2)
    with pytest.raises(ValueError, match="expected at least one global batch of 8 records in 2 files, received 7"):
        distribute_files(Pipelines(1), files, parse_fn=number, global_batch_size=8, policy="local")
