"""`tfdist.adopt()` changes the constructors of tf.distribute, and nothing before it is called."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import Children, Finished

# The processes begin with four logical CPUs and with what follows; each test prints one JSON value.
BEGIN = """
import copy, inspect, json, pickle, sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

def answer(value):
    print("ANSWER " + json.dumps(value))

def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"
"""


def answer(ended: Finished) -> object:
    assert ended.code == 0, ended.err
    return json.loads(ended.out.partition("ANSWER ")[2])


def run(children: Children, program: str, *args: str, **options) -> Finished:
    return children.run(BEGIN + textwrap.dedent(program), *args, **options)


def test_adopting_imports_no_tensorflow_and_the_import_of_tfdist_adopts_nothing():
    program = (
        "import sys, tfdist, tfdist.adoption\n"
        "before = 'tensorflow' in sys.modules\n"
        "import tensorflow as tf\n"
        "print(before, tf.distribute.MirroredStrategy.__init__.__module__)\n"
        "import tfdist.strategies\n"
        "tf.distribute.MirroredStrategy(['CPU:0'])\n"
        "print(tfdist.keras_compat.applied_mends())\n"
    )
    stock = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert stock.stdout.split() == ["False", "tensorflow.python.distribute.mirrored_strategy", "()"]
    assert "adopted" not in stock.stderr


def test_constructors_that_adopt_are_the_same_classes_with_the_same_signatures(children):
    ended = run(
        children,
        """
        import tfdist
        names = ["OneDeviceStrategy", "MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy",
                 "TPUStrategy", "experimental.CentralStorageStrategy", "experimental.TPUStrategy",
                 "experimental.MultiWorkerMirroredStrategy", "experimental.ParameterServerStrategy"]
        def classes():
            return [getattr(tf.distribute.experimental if "." in n else tf.distribute, n.split(".")[-1]) for n in names]
        before = [(c, str(inspect.signature(c)), c.__init__.__doc__, pickle.dumps(c)) for c in classes()]
        tfdist.adopt()
        after = [(c, str(inspect.signature(c)), c.__init__.__doc__, pickle.dumps(c)) for c in classes()]
        answer(before == after)
        """,
    )
    assert answer(ended) is True


def test_an_adopted_strategy_is_one_of_tensorflow_in_every_respect(children):
    ended = run(
        children,
        """
        import tfdist
        tfdist.adopt()
        class Own(tf.distribute.MirroredStrategy):
            def __init__(self, count):
                super().__init__([f"CPU:{i}" for i in range(count)])
                self.replicas = self.num_replicas_in_sync
        own, workers = Own(2), tf.distribute.MultiWorkerMirroredStrategy()
        old = tf.distribute.experimental.MultiWorkerMirroredStrategy()
        copied = copy.deepcopy(own)
        total = copied.reduce("sum", copied.run(tf.function(lambda: tf.ones([]))), axis=None)
        answer([
            type(own) is Own, isinstance(own, tf.distribute.MirroredStrategy), own.replicas, float(total),
            type(workers) is tf.distribute.MultiWorkerMirroredStrategy,
            isinstance(workers, tf.distribute.experimental.MultiWorkerMirroredStrategy),
            isinstance(old, tf.distribute.MultiWorkerMirroredStrategy),
            [workers.cluster_resolver.task_type, workers.cluster_resolver.task_id],
        ])
        """,
    )
    assert answer(ended) == [True, True, 2, 2.0, True, True, True, [None, None]]
    adopted = [line for line in ended.err.splitlines() if line.startswith("tfdist: adopted")]
    assert [line.partition(",")[0] for line in adopted] == [
        "tfdist: adopted Own (MirroredStrategy): 2 replicas",
        "tfdist: adopted MultiWorkerMirroredStrategy: 1 worker",
        "tfdist: adopted MultiWorkerMirroredStrategy: 1 worker",
    ]


PREPARED = """
import tfdist
from tfdist.allreduce.options_of import all_reduce_of
from tfdist.keras_compat.losses.rule import loss_rule_of

make = {
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    "central_storage": lambda: tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "multi_worker_mirrored": lambda: tf.distribute.MultiWorkerMirroredStrategy(),
    "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}
devices = {"central_storage": 2, "mirrored": 2}
options = {"loss": "global_sum", "sync_batch_norm": True}
if sys.argv[1] == "adopted":
    tfdist.adopt(**options)
else:
    make = {name: lambda name=name: tfdist.create_strategy(name, devices=devices.get(name), **options) for name in make}
found = {}
for name, constructor in make.items():
    strategy = constructor()
    found[name] = [
        strategy._tfdist_kind, loss_rule_of(strategy), str(all_reduce_of(strategy)), strategy._tfdist_sync_batch_norm,
        sorted(tfdist.keras_compat.applied_mends()),
    ]
answer(found)
"""


def test_each_strategy_is_prepared_as_create_strategy_prepares_it(children):
    created, adopted = (run(children, PREPARED, way) for way in ("created", "adopted"))
    # Mends that are needed only for devices=... of create_strategy are not needed here.
    assert answer(adopted) == answer(created)
    assert created.err.count("adopted ") == 0
    assert adopted.err.count("adopted ") == 4


def test_create_strategy_works_beside_adoption_and_nothing_is_adopted_twice(children):
    ended = run(
        children,
        """
        import tfdist
        first = tfdist.create_strategy("mirrored", devices=2)
        tfdist.adopt()
        tfdist.adopt(loss="replica_mean")
        second = tfdist.create_strategy("mirrored", devices=2, loss="global_sum")
        third = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        totals = [float(s.reduce("sum", s.run(tf.function(lambda: tf.ones([]))), axis=None))
                  for s in (first, second, third)]
        answer([totals, [s._tfdist_loss_rule for s in (first, second, third)]])
        """,
    )
    assert answer(ended) == [[2.0] * 3, ["auto", "global_sum", "replica_mean"]]
    assert ended.err.count("adopted ") == 1


def test_a_tpu_strategy_is_prepared(children):
    ended = run(
        children,
        """
        import tfdist
        # No TPU is at hand: the constructors make the strategy of one CPU.
        for tpu in (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy):
            def __init__(self, tpu_cluster_resolver=None):
                tf.distribute.Strategy.__init__(self, tf.distribute.OneDeviceStrategy("/cpu:0").extended)
            tpu.__init__ = __init__
        import tensorflow.python.distribute.distribute_lib as lib
        tfdist.adopt()
        answer([tf.distribute.TPUStrategy()._tfdist_kind, tf.distribute.experimental.TPUStrategy()._tfdist_kind])
        """,
    )
    assert answer(ended) == ["tpu", "tpu"]
    assert ended.err.count("adopted TPUStrategy: 1 replica, ") == 2


def test_what_adoption_cannot_honour_is_refused_in_one_sentence(children):
    ended = run(
        children,
        """
        import tfdist
        tfdist.adopt()
        nccl = tf.distribute.experimental.CommunicationImplementation.NCCL
        cluster = lambda jobs: tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type="worker", task_id=0, rpc_layer="grpc")
        answer([
            error_of(lambda: tf.distribute.MirroredStrategy(["CPU:0"], tf.distribute.NcclAllReduce())),
            error_of(lambda: tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=tf.distribute.experimental.CommunicationOptions(implementation=nccl))),
            error_of(lambda: tf.distribute.MultiWorkerMirroredStrategy(communication_options=7)),
            error_of(lambda: tf.distribute.MultiWorkerMirroredStrategy(
                cluster({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}))),
            error_of(lambda: tf.distribute.MultiWorkerMirroredStrategy(cluster({"worker": ["a:1", "a:1"]}))),
            error_of(lambda: tf.distribute.ParameterServerStrategy(cluster({"worker": ["b:1"]}))),
            error_of(lambda: tf.compat.v1.distribute.MirroredStrategy()),
            error_of(lambda: tf.distribute.MirroredStrategy(device="CPU:0")),
            error_of(lambda: tfdist.adopt(startup_timeout_seconds=0)),
        ])
        """,
    )
    expected = [
        "ValueError: expected GPUs for all_reduce.algorithm='nccl', received a mirrored strategy on CPUs; ",
        "ValueError: expected GPUs for all_reduce.algorithm='nccl', received a worker without GPUs; ",
        "ValueError: expected communication_options to be a CommunicationOptions, received 7.",
        "ValueError: expected a cluster of workers for the strategy multi_worker_mirrored, received one with job ps; ",
        "ValueError: SimpleClusterResolver: expected every task in cluster to have an address of its own, received ",
        "ValueError: expected a cluster with the jobs chief, worker and ps for the strategy parameter_server, ",
        "ValueError: expected a strategy of TensorFlow 2 with tfdist.adopt(), received "
        "tf.compat.v1.distribute.MirroredStrategy; make tf.distribute.MirroredStrategy, or leave adoption out.",
        # TensorFlow's own error.
        "TypeError: MirroredStrategy.__init__() got an unexpected keyword argument 'device'",
        "ValueError: expected startup_timeout_seconds to be positive and finite, received 0; leave it out for 300 s.",
    ]
    for received, sentence in zip(answer(ended), expected, strict=True):
        assert received.startswith(sentence)


def test_adoption_after_a_strategy_is_refused(children):
    ended = run(
        children,
        """
        import tfdist
        created = tfdist.create_strategy("one_device")
        tfdist.adopt()
        stock = tf.distribute.get_strategy()
        answer("accepted")
        """,
    )
    assert answer(ended) == "accepted"
    ended = run(
        children,
        """
        import tfdist
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        answer(error_of(tfdist.adopt))
        """,
    )
    assert answer(ended) == (
        "RuntimeError: expected tfdist.adopt() before the program makes a strategy, received it after "
        "MirroredStrategy; call it at the top of the program."
    )


def test_a_worker_that_is_missing_is_named_at_the_deadline(children, free_ports):
    own, other = free_ports(2)
    addresses = [f"127.0.0.1:{own}", f"127.0.0.1:{other}"]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    ended = run(
        children,
        """
        import tfdist
        tfdist.adopt(startup_timeout_seconds=2)
        answer(error_of(tf.distribute.MultiWorkerMirroredStrategy))
        """,
        env={"TF_CONFIG": json.dumps(config)},
    )
    assert f"worker 1 at 127.0.0.1:{other} did not answer in 2 s (connection refused)" in answer(ended)


def test_a_strategy_that_is_made_too_late_is_explained(children, free_ports):
    (own,) = free_ports(1)
    config = {"cluster": {"worker": [f"127.0.0.1:{own}"]}, "task": {"type": "worker", "index": 0}}
    ended = run(
        children,
        """
        import tfdist
        tfdist.adopt()
        early = tf.constant(1)
        answer(error_of(tf.distribute.MultiWorkerMirroredStrategy))
        """,
        env={"TF_CONFIG": json.dumps(config)},
    )
    assert "TensorFlow was started by: the tensor `early` in __main__" in answer(ended)


def test_a_local_strategy_in_a_cluster_says_that_it_trains_alone(children):
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    ended = run(
        children,
        "import tfdist\ntfdist.adopt()\ntf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n",
        env={"TF_CONFIG": json.dumps(config)},
    )
    assert (
        "adopted MirroredStrategy: 2 replicas of this process alone, although the cluster has 2 workers (TF_CONFIG), "
    ) in ended.err


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("x = 1\n", True),
        ("strategy = tf.distribute.MirroredStrategy(['CPU:0'])\n", False),
        ("strategy = tfdist.create_strategy('one_device')\n", False),
        ("sys.exit(3)\n", True),
        ("raise ValueError('broken')\n", False),
    ],
)
def test_a_program_that_makes_no_strategy_is_told_so(program, says, children):
    ended = run(children, "import tfdist\ntfdist.adopt()\n" + program)
    sentence = "adopted nothing: the program has made no strategy with a constructor of tf.distribute"
    assert (sentence in ended.err) == says
