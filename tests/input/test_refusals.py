"""Options and positions that distribute_files refuses."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from tests.input.pipelines import AsynchronousPipelines, Pipelines, number
from tfdist.input import InputState, distribute_files


def test_fewer_records_than_a_global_batch_are_refused(write):
    with pytest.raises(ValueError, match=r"^expected at least one global batch of 8 records in 2 files, received 7;"):
        distribute_files(Pipelines(1), write(7, num_shards=2), parse_fn=number, global_batch_size=8)


def test_an_evaluation_without_records_is_refused(write):
    with pytest.raises(ValueError, match=r"^expected at least one record in 1 files, received none; add files"):
        distribute_files(Pipelines(1), write(0), parse_fn=number, global_batch_size=8, training=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "rows"}, "expected policy to be one of auto, files, records, replicate, local, received 'rows'."),
        (
            {"policy": "replicate", "training": False},
            "expected a policy that reads every record once with training=False, received 'replicate'; use 'auto'.",
        ),
        (
            {"policy": "files", "state": InputState(canonical_shards=4)},
            "expected at least 4 files, one for each shard, received 1; write more files",
        ),
        (
            {"compression": "GZIP", "reader": tf.data.TextLineDataset},
            "expected compression or a reader, received both; decompress the files in the reader.",
        ),
        (
            {"policy": "replicate", "state": InputState(canonical_shards=4)},
            "expected canonical_shards=None with the policy 'replicate', received 4.",
        ),
        ({"shuffle_buffer": -1}, "expected shuffle_buffer to be 0 (no shuffling) or more, received -1."),
        ({"num_threads": 0}, "expected num_threads to be at least 1 or None, received 0."),
        ({"compression": "ZIP"}, "expected compression to be 'GZIP', '' or None, received 'ZIP'."),
        (
            {"training": False, "seed": 1},
            "expected no seed and no shuffle_buffer with training=False, which does not shuffle, received seed=1 and s",
        ),
        ({"skip_corrupt": True, "drop_remainder": True}, "expected skip_corrupt or drop_remainder, received both: a"),
        (
            {"skip_corrupt": True, "reader": tf.data.TextLineDataset},
            "expected skip_corrupt or a reader, received both; skip the records in the reader.",
        ),
        ({"cache": True, "skip_corrupt": True}, "expected cache or skip_corrupt, received both; write the files"),
        ({"seed": 1, "state": InputState()}, "expected seed or state, received seed=1 and state=InputState("),
        (
            {"state": InputState(canonical_shards=3)},
            "expected canonical_shards to divide the 4 records of a step and to be a multiple of the 1 input pip",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message, write):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        distribute_files(Pipelines(1), write(9), parse_fn=number, global_batch_size=4, **options)


def test_a_step_within_an_epoch_of_a_parameter_server_is_refused(write):
    with pytest.raises(ValueError, match=r"^expected a state with step 0 for a parameter server strategy, whose"):
        distribute_files(
            AsynchronousPipelines(), write(9), parse_fn=number, global_batch_size=4, state=InputState(step=1)
        )


def test_a_step_beyond_the_epoch_is_refused(write):
    with pytest.raises(ValueError, match=r"^expected a step below the 3 steps of an epoch, received 3; compute the"):
        distribute_files(Pipelines(1), write(9), parse_fn=number, global_batch_size=4, state=InputState(step=3))


@pytest.mark.parametrize("name", ["seed", "epoch", "step"])
def test_a_negative_position_is_refused(name):
    with pytest.raises(ValueError, match=f"^expected {name} to be 0 or more, received -1.$"):
        InputState(**{name: -1})


@pytest.mark.parametrize(
    ("replicas", "batch", "advice"), [(2, 5, 4), (4, 3, 4), (4, 2, 4), (3, 100, 99), (1, 0, 1), (2, -2, 2)]
)
def test_a_batch_that_the_replicas_do_not_divide_is_refused(replicas, batch, advice, write):
    message = f"expected global_batch_size to be a multiple of the {replicas} replicas, received {batch}; use {advice}."
    with pytest.raises(ValueError, match=re.escape(message)):
        distribute_files(Pipelines(replicas), write(3), parse_fn=number, global_batch_size=batch)


def test_a_state_with_0_shards_is_refused():
    with pytest.raises(ValueError, match=r"^expected canonical_shards to be at least 1 or None, received 0.$"):
        InputState(canonical_shards=0)


@pytest.mark.parametrize(("steps", "steps_per_epoch"), [(-1, 10), (1, 0)])
def test_a_position_after_impossible_numbers_of_steps_is_refused(steps, steps_per_epoch):
    message = (
        f"^expected steps of 0 or more and steps_per_epoch of at least 1, received {steps} and {steps_per_epoch}.$"
    )
    with pytest.raises(ValueError, match=message):
        InputState(step=5).after(steps, steps_per_epoch=steps_per_epoch)
