from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.input import File, plan_shards

files_of = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 1000)), min_size=1, max_size=40).map(
    lambda sizes: [File(name=f"f{i:02d}", size=size, records=records) for i, (size, records) in enumerate(sizes)]
)


def seen(plan):
    return sorted(
        (segment.file, record)
        for shard in plan.shards
        for segment in shard
        for record in range(segment.start, segment.stop)
    )


@settings(max_examples=300, deadline=None)
@given(files=files_of, num_shards=st.integers(1, 12), policy=st.sampled_from(["auto", "files", "records"]))
def test_every_record_is_in_one_shard(files, num_shards, policy):
    if policy == "files" and len(files) < num_shards:
        policy = "auto"
    plan = plan_shards(files, num_shards, policy=policy)
    assert seen(plan) == sorted((file.name, record) for file in files for record in range(file.records))
    assert len(plan.shards) == num_shards
    if plan.policy == "records":
        assert max(plan.records) - min(plan.records) <= 1
    else:
        assert sum(map(len, plan.shards)) == len(files)


@settings(max_examples=300, deadline=None)
@given(files=files_of, num_shards=st.integers(1, 12))
def test_the_order_in_which_files_are_named_does_not_matter(files, num_shards):
    assert plan_shards(files, num_shards) == plan_shards(files[::-1], num_shards)


@settings(max_examples=100, deadline=None)
@given(files=files_of, num_shards=st.integers(1, 5))
def test_replicate_gives_all_records_to_every_shard(files, num_shards):
    plan = plan_shards(files, num_shards, policy="replicate")
    everything = sorted((file.name, record) for file in files for record in range(file.records))
    assert seen(plan) == sorted(everything * num_shards)


@pytest.mark.parametrize("seed", range(20))
def test_files_of_log_normal_sizes_are_balanced(seed):
    sizes = np.random.default_rng(seed).lognormal(mean=15, sigma=1, size=100).astype(int).tolist()
    mean = sum(sizes) / 8
    plan = plan_shards([File(name=str(i), size=size) for i, size in enumerate(sizes)], 8)
    assert plan.policy == "files"
    assert plan.imbalance == max(plan.sizes) / mean
    # If one file is larger than the mean size of a shard, no shard is larger than that file.
    assert plan.imbalance <= max(1.02, max(sizes) / mean)


def test_the_records_decide_and_not_the_bytes():
    """Seven files of 100 long records and one of 3000 short ones, all of equal size: a step reads records."""
    unequal = [File(name=str(i), size=100_000, records=3000 if i == 7 else 100) for i in range(8)]
    assert plan_shards(unequal, 8).policy == "records"
    assert plan_shards(unequal, 8, policy="files").imbalance == pytest.approx(3000 * 8 / 3700)
    # Four files have most of the bytes, and all have the same number of records.
    equal = [File(name=str(i), size=100_000 if i % 4 == 0 else 10, records=100) for i in range(16)]
    plan = plan_shards(equal, 8)
    assert (plan.policy, plan.records, plan.imbalance) == ("files", (200,) * 8, 1.0)


def test_few_or_unequal_files_are_split_by_record_if_records_are_counted():
    three = [File(name=name, size=10, records=10) for name in "abc"]
    assert plan_shards(three, 3).policy == "files"
    assert plan_shards(three, 4).policy == "records"
    assert plan_shards(three, 2).policy == "records"
    assert plan_shards([File(name=name, size=10) for name in "abc"], 2).policy == "files"


def test_segments_of_a_split_file_have_bytes_in_proportion_to_their_records():
    plan = plan_shards([File(name="a", size=100, records=10)], 3)
    assert [[(s.start, s.stop, s.size) for s in shard] for shard in plan.shards] == [
        [(0, 3, 30)],
        [(3, 6, 30)],
        [(6, 10, 40)],
    ]


def test_a_pipeline_reads_neighbouring_shards():
    plan = plan_shards([File(name=str(i), size=i + 1, records=1) for i in range(8)], 4, policy="files")
    pipelines = plan.of_pipelines(2)
    assert pipelines.shards == (plan.shards[0] + plan.shards[1], plan.shards[2] + plan.shards[3])
    with pytest.raises(ValueError, match=r"^expected a number of pipelines that divides the 4 shards, received 3.$"):
        plan.of_pipelines(3)


def test_the_plan_prints_as_a_table():
    text = str(plan_shards([File(name="a", size=3000, records=2), File(name="b", size=1000)], 2, policy="files"))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[0] == ["shard", "files", "records", "bytes", "of", "the", "mean"]
    assert lines[2:4] == [["0", "1", "2", "3,000", "1.500"], ["1", "1", "?", "1,000", "0.500"]]
    assert "policy files, imbalance 1.500" in text


@pytest.mark.parametrize(
    ("files", "num_shards", "policy", "message"),
    [
        ([], 1, "auto", "expected at least one file, received none; check the pattern."),
        (["a", "b", "a"], 1, "auto", "expected every file once, received 'a' twice."),
        (["a"], 0, "auto", "expected num_shards to be at least 1, received 0."),
        (
            ["a"],
            1,
            "rows",
            "expected policy to be one of auto, files, records, replicate, received 'rows'.",
        ),
        (["a"], 2, "files", "expected at least 2 files, one for each shard, received 1; write more files, or use the"),
        (["a"], 2, "auto", "expected the number of records of every file with the policy 'records', received 'a' with"),
        ([File(name="a", size=-1)], 1, "auto", "expected a size and a number of records of 0 or more, received File("),
    ],
)
def test_impossible_plans_are_refused(files, num_shards, policy, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        plan_shards(files, num_shards, policy=policy)
