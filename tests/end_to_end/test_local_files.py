"""Two workers whose hosts have different files: each reads its own, both make the same steps, and numbers are right."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Finished, launch, run

PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf
import tfdist
from tfdist.input import distribute_files
from tfdist.workers import worker_index

strategy = tfdist.create_strategy()
tf.keras.backend.set_floatx("float64")
own = sys.argv[1].format(worker_index(strategy))


def parse(record):
    number = tf.strings.to_number(record, tf.float64)
    return number[None], (2 * number + 1)[None]


def read(training):
    options = {"parse_fn": parse, "global_batch_size": 16, "policy": "local", "training": training}
    return distribute_files(strategy, own, **options)


train, test = read(True), read(False)
steps = train.steps_per_epoch
seen = []
# A further iteration over the same dataset would begin at the next epoch.
for _, (x, _) in zip(range(2 * steps), train.at(train.state)):
    seen.append([value.ravel().tolist() for value in map(np.asarray, strategy.experimental_local_results(x))])
with strategy.scope():
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
model.fit(train, epochs=2, verbose=0)
weights = [value.ravel().tolist() for value in model.get_weights()]
model.set_weights([0 * value for value in model.get_weights()])
mae = model.evaluate(test, steps=test.steps_per_epoch, verbose=0)[1]
print("RESULT", json.dumps([worker_index(strategy), steps, seen, weights, mae]), flush=True)
"""
# Numbers of records of the files of each host.
HOSTS = ([20, 21, 9], [33, 1])


def write(folder: Path, hosts: tuple[list[int], ...]) -> list[list[float]]:
    """Writes the files of all hosts and returns the numbers of each."""
    numbers = []
    code = "import sys; from tfdist.input import write_tfrecords; "
    code += "[write_tfrecords([t.encode() for t in a.split(',') if t], f, num_shards=1) for f, a in "
    code += "zip(sys.argv[1::2], sys.argv[2::2])]"
    arguments = []
    for host, sizes in enumerate(hosts):
        (folder / f"host{host}").mkdir()
        own = np.random.default_rng(host).uniform(-1, 1, sum(sizes)).round(6).tolist()
        numbers.append(own)
        for file, part in enumerate(np.split(np.array(own), np.cumsum(sizes)[:-1])):
            arguments += [str(folder / f"host{host}" / f"part-{file}"), ",".join(map(repr, part.tolist()))]
    (folder / "write.py").write_text(code)
    assert run([sys.executable, "write.py", *arguments], cwd=folder, deadline_seconds=120).code == 0
    return numbers


def trained(folder: Path, *, pattern: str = "host{}/part-*", seconds: float = 150.0) -> Finished:
    (folder / "program.py").write_text(PROGRAM)
    return launch("--workers", "2", "program.py", str(folder / pattern), cwd=folder, deadline_seconds=seconds)


def test_each_worker_reads_its_own_files_and_both_train_the_model_of_one_device(tmp_path):
    numbers = write(tmp_path, HOSTS)
    ended = trained(tmp_path)
    assert ended.code == 0
    found = sorted(json.loads(text) for text in re.findall(r"RESULT (\[.*\])", ended.text))
    assert [worker for worker, *_ in found] == [0, 1]
    # 50 and 34 records in steps of 8 for each worker.
    assert [steps for _, steps, *_ in found] == [7, 7]
    for worker, _, seen, *_ in found:
        for epoch in (seen[:7], seen[7:]):
            assert sorted(value for step in epoch for batch in step for value in batch) == sorted(numbers[worker])
    # One device, in numpy: each global batch has the rows of both workers.
    kernel = bias = 0.0
    for step in range(14):
        x = np.concatenate([np.concatenate(seen[step]) for _, _, seen, *_ in found])
        error = 2 * (kernel * x + bias - (2 * x + 1)) / len(x)
        kernel, bias = kernel - 0.1 * (error @ x), bias - 0.1 * error.sum()
    everything = np.concatenate(numbers)
    for *_, weights, mae in found:
        assert np.ravel(weights) == pytest.approx([kernel, bias], rel=1e-10)
        assert mae == pytest.approx(np.abs(2 * everything + 1).mean(), rel=1e-10)


def test_a_host_without_files_ends_both_workers(tmp_path):
    write(tmp_path, ([20], [20]))
    shutil.rmtree(tmp_path / "host1")
    ended = trained(tmp_path, seconds=100.0)
    assert ended.code != 0
    assert re.search(r"expected files that match '\S+host1/part-\*', received none", ended.text)


def test_a_host_with_empty_files_is_named_by_both_workers(tmp_path):
    write(tmp_path, ([20], [0]))
    ended = trained(tmp_path, seconds=100.0)
    assert ended.code != 0
    assert "expected records on every worker with the policy 'local', received none on worker 1 and 20" in ended.text


def test_the_same_files_on_both_hosts_are_reported(tmp_path):
    write(tmp_path, ([20],))
    ended = trained(tmp_path, pattern="host0/part-*")
    assert ended.code == 0
    assert "received 1 files with the same names and sizes on all 2 workers" in ended.text
