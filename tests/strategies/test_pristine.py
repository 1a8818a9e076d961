"""Tests that need a process in which TensorFlow has not started. Each program runs in a process of its own."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

# The number of programs that run at the same time.
AT_ONCE = 3

# Defines `attempt`, which calls a function and prints its strategy or its error as one line of JSON.
TRY = """
import json
import socket

def attempt(function):
    try:
        result = function()
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
    else:
        print(json.dumps([type(result).__name__, result.num_replicas_in_sync]), flush=True)

def one_worker():
    from tfdist.cluster import ClusterConfig
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % holder.getsockname()[1]
    return ClusterConfig(jobs={"worker": [address]}, task_type="worker")
"""

PROGRAMS = {
    "auto": """
import sys, tfdist
from tfdist.cluster import ClusterConfig
# As if tfdist-native were not installed.
sys.modules["tfdist_native"] = None
evaluator = ClusterConfig(jobs={"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, task_type="evaluator")
for options in ({"devices": 2}, {}, {"cluster": evaluator}):
    attempt(lambda: tfdist.create_strategy("auto", **options))
""",
    "one_worker": """
import tfdist
attempt(lambda: tfdist.create_strategy("multi_worker_mirrored", cluster=one_worker()))
""",
    "late_variable": """
import tensorflow as tf
v = tf.Variable(1.0)
import tfdist
attempt(lambda: tfdist.create_strategy("multi_worker_mirrored", cluster=one_worker()))
attempt(lambda: tfdist.create_strategy("mirrored", devices=2))
""",
    "late_model": """
from tfdist.keras_compat.version import keras
net = keras().Sequential([keras().layers.Input((2,)), keras().layers.Dense(1)])
import tfdist
attempt(lambda: tfdist.create_strategy("multi_worker_mirrored", cluster=one_worker()))
attempt(lambda: tfdist.create_strategy("central_storage", devices=2))
""",
    "ps_port_taken": """
import tfdist
from tfdist.cluster import ClusterConfig
with socket.create_server(("127.0.0.1", 0)) as server:
    taken = "127.0.0.1:%d" % server.getsockname()[1]
    jobs = {"chief": ["127.0.0.1:1"], "worker": [taken], "ps": ["127.0.0.1:2"]}
    print(taken)
    attempt(lambda: tfdist.create_strategy("parameter_server", cluster=ClusterConfig(jobs=jobs, task_type="worker")))
""",
}


@pytest.fixture(scope="module")
def ended(module_children):
    starting = threading.Lock()

    def run(program):
        with starting:
            child = module_children.start(TRY + program)
        return child.end()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(PROGRAMS, pool.map(run, PROGRAMS.values()), strict=True))


def results(finished):
    assert finished.code == 0, finished.err
    return [json.loads(line) for line in finished.out.splitlines() if line.startswith("[")]


def log(finished):
    return [line for line in finished.err.splitlines() if line.startswith("tfdist:")]


def test_auto_logs_its_choice_and_reason(ended):
    assert results(ended["auto"]) == [["MirroredStrategy", 2], ["OneDeviceStrategy", 1], ["OneDeviceStrategy", 1]]
    nothing = "this machine has no GPU and no TF_CONFIG names other workers"
    assert log(ended["auto"]) == [
        "tfdist: strategy mirrored: 2 devices asked for; all-reduce: auto chose ring (tfdist-native is not installed)",
        f"tfdist: strategy one_device: {nothing}",
        f"tfdist: strategy one_device: this task is the evaluator, outside the cluster, and {nothing}",
    ]


def test_a_cluster_of_one_worker_starts(ended):
    (kind, replicas) = results(ended["one_worker"])[0]
    assert kind in ("CollectiveAllReduceStrategy", "MultiWorkerMirroredStrategy")
    assert replicas == 1


@pytest.mark.parametrize(
    ("program", "culprit"), [("late_variable", "the variable `v`"), ("late_model", "the model `net`")]
)
def test_a_late_start_names_the_culprit(program, culprit, ended):
    workers, cpus = results(ended[program])
    advice = (
        f"TensorFlow was started by: {culprit} in __main__; make the strategy earlier, before any tensor, "
        "variable, dataset or model is made (TensorFlow said: "
    )
    assert workers[0] == cpus[0] == "RuntimeError"
    start = "expected the multi-worker strategy to be created before TensorFlow starts, but it has started: "
    assert workers[1].startswith(start + advice)
    assert "program startup" in workers[1]
    start = "expected to make 2 logical CPU devices before TensorFlow starts, but it has started: "
    assert cpus[1].startswith(start + advice)


def test_a_server_whose_port_is_taken_raises_an_error_with_its_address(ended):
    (kind, message) = results(ended["ps_port_taken"])[0]
    taken = ended["ps_port_taken"].out.splitlines()[0]
    assert kind == "RuntimeError"
    assert message.startswith(f"worker 0 expected to serve at its own address {taken}, but TensorFlow could not: ")
    assert "; stop the process that holds the port or choose another port." in message
