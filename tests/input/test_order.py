"""Each global batch has the same records on every cluster."""

from __future__ import annotations

import pytest

from tests.input.pipelines import Pipelines, contexts, flat, global_batches, number, values
from tfdist.input import InputState, distribute_files


@pytest.mark.parametrize(
    ("training", "policy", "others"),
    [
        (True, "records", (2,)),
        pytest.param(True, "records", (4, 8), marks=pytest.mark.full),
        pytest.param(True, "files", (2, 4, 8), marks=pytest.mark.full),
        pytest.param(False, "files", (2, 4, 8), marks=pytest.mark.full),
        pytest.param(False, "records", (2, 4, 8), marks=pytest.mark.full),
    ],
)
def test_global_batches_are_the_same_on_1_2_4_and_8_pipelines(policy, training, others, unequal):
    def read(pipelines, **more):
        options = {"global_batch_size": 16, "policy": policy, "training": training}
        options |= {"seed": 3} if training else {}
        return global_batches(unequal, pipelines, steps=50 if training else None, **options, **more)

    expected = read(1)
    for pipelines in others:
        assert read(pipelines) == expected
    assert [sorted(batch) for batch in read(max(others), local=2)] == [sorted(batch) for batch in expected]


@pytest.mark.parametrize(
    ("policy", "starts"),
    [("files", slice(0, 2)), *(pytest.param(one, slice(5), marks=pytest.mark.full) for one in ("files", "records"))],
)
def test_a_start_at_any_step_on_any_cluster_continues_an_uninterrupted_run(policy, starts, unequal):
    options = {"global_batch_size": 16, "policy": policy}
    steps = distribute_files(Pipelines(1), unequal, parse_fn=number, **options).steps_per_epoch
    whole = global_batches(unequal, 1, steps=3 * steps, state=InputState(seed=4), **options)
    assert [sorted(flat(whole[epoch * steps : (epoch + 1) * steps])) for epoch in range(3)] == [list(range(580))] * 3
    all_starts = [(2 * steps + 5, 2), (steps, 1), (1, 2), (steps - 1, 4), (steps + 17, 8)]
    for begin, pipelines in all_starts[starts]:
        state = InputState(seed=4).after(begin, steps_per_epoch=steps)
        assert global_batches(unequal, pipelines, steps=6, state=state, **options) == whole[begin : begin + 6]


def test_the_state_holds_the_number_of_shards_that_keeps_the_order_on_another_cluster(unequal):
    assert distribute_files(Pipelines(1), unequal, parse_fn=number, global_batch_size=30).state.canonical_shards == 6
    # 8 shards cannot be divided among 3 pipelines, so 12 shards are chosen. With 12 shards, 1 pipeline reads the same
    # batches.
    of_three = global_batches(unequal, 3, steps=9, global_batch_size=48)
    state = InputState(canonical_shards=12)
    assert global_batches(unequal, 1, steps=9, global_batch_size=48, state=state) == of_three
    assert global_batches(unequal, 1, steps=9, global_batch_size=48) != of_three


def test_the_last_rows_of_an_epoch_are_divided_evenly_among_replicas(unequal):
    dataset_fn = distribute_files(
        Pipelines(4), unequal, parse_fn=number, global_batch_size=16, training=False, policy="files"
    )
    for context in contexts(2, 4):
        sizes = [len(batch) for batch in values(dataset_fn(context))]
        assert all(abs(one - other) <= 1 for one, other in zip(sizes[::2], sizes[1::2], strict=True))
