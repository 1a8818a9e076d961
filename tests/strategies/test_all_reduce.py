from __future__ import annotations

import re

import pytest
import tensorflow as tf

from tfdist import AllReduceOptions, create_strategy
from tfdist.allreduce.compression import COMPRESSIONS
from tfdist.allreduce.options import ALGORITHMS
from tfdist.strategies.all_reduce import (
    automatic_algorithm,
    communication_options,
    cross_device_ops,
    refuse_all_reduce,
)

IMPLEMENTATION = tf.distribute.experimental.CommunicationImplementation


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "tree"}, f"algorithm to be one of {', '.join(ALGORITHMS)}, received 'tree'."),
        ({"compression": "zip"}, f"compression to be one of {', '.join(COMPRESSIONS)}, received 'zip'"),
        ({"num_packs": 0}, "num_packs to be a positive whole number, received 0; leave it out for the default."),
        (
            {"bytes_per_pack": -1},
            "bytes_per_pack to be a positive whole number, received -1; leave it out for the default.",
        ),
        (
            {"timeout_seconds": 0.0},
            "timeout_seconds to be a positive number, received 0.0; leave it out for the default.",
        ),
        ({"timeout_seconds": float("nan")}, "timeout_seconds to be a positive number, received nan; leave it out for "),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape("expected all_reduce." + message)):
        AllReduceOptions(**options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_options_of_every_algorithm_are_values(algorithm):
    options = AllReduceOptions(algorithm=algorithm, num_packs=2, compression="none")
    assert options == AllReduceOptions(algorithm=algorithm, num_packs=2, compression="none")
    assert hash(options) is not None


@pytest.mark.parametrize(
    ("options", "num_gpus", "kind"),
    [
        (None, 0, type(None)),
        (AllReduceOptions(), 2, type(None)),
        (AllReduceOptions(algorithm="nccl"), 2, tf.distribute.NcclAllReduce),
        (AllReduceOptions(algorithm="nccl", num_packs=2), 2, tf.distribute.NcclAllReduce),
        (AllReduceOptions(algorithm="hierarchical_copy"), 0, tf.distribute.HierarchicalCopyAllReduce),
        (AllReduceOptions(algorithm="reduction_to_one_device"), 0, tf.distribute.ReductionToOneDevice),
    ],
)
def test_a_mirrored_strategy_gets_the_cross_device_ops_of_its_options(options, num_gpus, kind):
    assert type(cross_device_ops(options, num_gpus=num_gpus)) is kind


@pytest.mark.parametrize("algorithm", ["nccl", "hierarchical_copy"])
def test_the_number_of_packs_reaches_tensorflow(algorithm):
    ops = cross_device_ops(AllReduceOptions(algorithm=algorithm, num_packs=7), num_gpus=2)
    assert ops._num_packs == 7


@pytest.mark.parametrize(
    ("strategy", "options", "devices", "gpus", "is_split", "chosen"),
    [
        ("mirrored", None, None, 2, False, "nccl"),
        ("mirrored", AllReduceOptions(), 2, 2, False, "nccl"),
        ("mirrored", None, ["GPU:0", "GPU:1"], 2, True, "ring"),
        ("mirrored", None, ["GPU:0", "CPU:0"], 1, False, "reduction_to_one_device"),
        ("mirrored", AllReduceOptions(transport="tensorflow"), ["CPU:0", "CPU:1"], 2, False, "ring"),
        (
            "multi_worker_mirrored",
            None,
            None,
            1,
            False,
            "ring; algorithm='nccl' asks for NCCL, if no two workers share a GPU",
        ),
        ("multi_worker_mirrored", AllReduceOptions(transport="tensorflow"), None, 0, False, "ring"),
        ("multi_worker_mirrored", AllReduceOptions(algorithm="nccl"), None, 1, False, ""),
    ],
)
def test_the_log_names_what_tensorflow_chooses(strategy, options, devices, gpus, is_split, chosen):
    assert automatic_algorithm(strategy, options, devices=devices, gpus=gpus, is_split=is_split) == chosen


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_no_transport_is_named_before_the_workers_have_agreed(strategy, monkeypatch):
    monkeypatch.setattr("tfdist.strategies.transport.is_installed", lambda: True)
    assert automatic_algorithm(strategy, None, devices=None, gpus=0, is_split=False) == ""


@pytest.mark.parametrize("convert", [cross_device_ops, communication_options])
def test_nccl_is_refused_on_a_gpu_that_is_split(convert):
    message = "expected a GPU for each replica for all_reduce.algorithm='nccl', received a GPU that is split into"
    with pytest.raises(ValueError, match=re.escape(message)):
        convert(AllReduceOptions(algorithm="nccl"), num_gpus=2, is_split=True)


@pytest.mark.parametrize("algorithm", ["hierarchical_copy", "reduction_to_one_device"])
def test_a_mirrored_strategy_sums_with_each_algorithm(algorithm):
    strategy = create_strategy("mirrored", devices=2, all_reduce=AllReduceOptions(algorithm=algorithm))

    @tf.function
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            own = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return strategy.run(replica)

    assert [value.numpy() for value in strategy.experimental_local_results(step())] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "nccl"},
            "expected GPUs for all_reduce.algorithm='nccl', received a mirrored strategy on CPUs; use 'auto', ",
        ),
        (
            {"algorithm": "ring"},
            "expected an all_reduce.algorithm of a mirrored strategy (auto, nccl, hierarchical_copy, "
            "reduction_to_one_device), received 'ring', which works across workers; use it with multi_worker_mirrored.",
        ),
        (
            {"bytes_per_pack": 1024},
            "expected no all_reduce.bytes_per_pack for the strategy mirrored, received 1024; "
            "only a reduction across workers uses this option.",
        ),
        (
            {"timeout_seconds": 5.0},
            "expected no all_reduce.timeout_seconds for the strategy mirrored, received 5.0; "
            "only a reduction across workers uses this option.",
        ),
        (
            {"algorithm": "reduction_to_one_device", "num_packs": 2},
            "expected no all_reduce.num_packs for the strategy mirrored, received 2; "
            "the algorithm 'reduction_to_one_device' does not pack.",
        ),
        (
            {"num_packs": 2},
            "expected no all_reduce.num_packs for the strategy mirrored, received 2; "
            "the algorithm 'auto' does not pack.",
        ),
    ],
)
def test_a_mirrored_strategy_refuses_options_that_it_cannot_honour(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_strategy("mirrored", devices=2, all_reduce=AllReduceOptions(**options))


@pytest.mark.parametrize(
    ("options", "num_gpus", "implementation", "bytes_per_pack"),
    [
        (None, 0, IMPLEMENTATION.AUTO, 0),
        (AllReduceOptions(), 1, IMPLEMENTATION.AUTO, 0),
        (AllReduceOptions(algorithm="ring", bytes_per_pack=4096), 0, IMPLEMENTATION.RING, 4096),
        (AllReduceOptions(algorithm="nccl", timeout_seconds=5.0), 1, IMPLEMENTATION.NCCL, 0),
    ],
)
def test_all_reduce_options_become_communication_options_of_workers(options, num_gpus, implementation, bytes_per_pack):
    made = communication_options(options, num_gpus=num_gpus)
    assert (made.implementation, made.bytes_per_pack) == (implementation, bytes_per_pack)
    # SumDeadline honours timeout_seconds. The timeout of TensorFlow would start a sleeping thread for every collective.
    assert made.timeout_seconds is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "nccl"},
            "expected GPUs for all_reduce.algorithm='nccl', received a worker without GPUs; use 'auto' or 'ring'.",
        ),
        (
            {"algorithm": "hierarchical_copy"},
            "expected an all_reduce.algorithm that works across workers (auto, ring, nccl), received "
            "'hierarchical_copy', which reduces within one process; use it with the mirrored strategy.",
        ),
        (
            {"algorithm": "reduction_to_one_device"},
            "expected an all_reduce.algorithm that works across workers (auto, ring, nccl), received "
            "'reduction_to_one_device', which reduces within one process; use it with the mirrored strategy.",
        ),
        (
            {"num_packs": 2},
            "expected no all_reduce.num_packs for the strategy multi_worker_mirrored, received 2; "
            "across workers, bytes_per_pack sets the packs.",
        ),
    ],
)
def test_workers_refuse_options_that_they_cannot_honour(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_strategy("multi_worker_mirrored", all_reduce=AllReduceOptions(**options))


def test_a_strategy_without_all_reduce_accepts_default_options():
    refuse_all_reduce("one_device", None)
    refuse_all_reduce("one_device", AllReduceOptions())
