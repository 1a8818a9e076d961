"""What DistributedOptimizer refuses: other objects, other strategies, and options that are the strategy's."""

from __future__ import annotations

import re

import pytest

from tests.optimizers.replicas import PREAMBLE
from tfdist import AllReduceOptions
from tfdist.allreduce.options_of import options_of_path
from tfdist.optimizers import LAMB, DistributedOptimizer, gradient_traffic


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DistributedOptimizer("adam"), "expected an optimizer of"),
        (
            lambda: DistributedOptimizer(DistributedOptimizer(LAMB(0.1))),
            "expected an optimizer that is not distributed",
        ),
        (
            lambda: DistributedOptimizer(LAMB(0.1), backward_passes_per_step=0),
            "expected backward_passes_per_step to be a whole number, at least 1, received 0",
        ),
        (lambda: gradient_traffic(LAMB(0.1)), "expected a distributed optimizer, received LAMB; wrap it first."),
        (
            lambda: options_of_path(AllReduceOptions(algorithm="ring"), AllReduceOptions()),
            "expected all_reduce.algorithm of an optimizer to be the strategy's, 'auto', received 'ring'",
        ),
        (
            lambda: options_of_path(AllReduceOptions(timeout_seconds=3.0), AllReduceOptions()),
            "expected all_reduce.timeout_seconds of an optimizer to be the strategy's, None, received 3.0",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_strategy_that_tfdist_has_not_made_is_refused(children):
    program = PREAMBLE.replace("tfdist.create_strategy(name, **options)", "None") + (
        "cpus = [tf.config.LogicalDeviceConfiguration()] * 2\n"
        "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], cpus)\n"
        "strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n"
        "with strategy.scope():\n"
        "    v = tf.Variable([1.0])\n"
        "    optimizer = DistributedOptimizer(tf.keras.optimizers.SGD())\n"
        "    try:\n"
        "        tf.function(strategy.run)(lambda: optimizer.apply_gradients([(tf.ones([1]), v)]) and None)\n"
        "    except Exception as error:\n"
        "        print('REFUSED', error)\n"
    )
    finished = children.run(program, "mirrored", "2")
    assert "expected a strategy of tfdist for DistributedOptimizer" in finished.out, finished.err


def test_central_storage_is_refused(children):
    program = PREAMBLE + (
        "with strategy.scope():\n"
        "    model = make('none')\n"
        "    try:\n"
        "        model.fit(data(), verbose=0)\n"
        "    except ValueError as error:\n"
        "        print('REFUSED', error)\n"
    )
    finished = children.run(program, "central_storage", "2")
    assert "REFUSED" in finished.out, finished.err
    assert "expected one of the strategies one_device, mirrored and multi_worker_mirrored" in finished.out
