"""Two workers read further epochs in further fits, and both end with an error if one of them finds no files."""

from __future__ import annotations

import json
import re

from tests.processes import launch

PROGRAM = """
import json, os
import tensorflow as tf
import tfdist
from tfdist.input import distribute_files, write_tfrecords
from tfdist.saving import written_by_chief
from tfdist.workers import worker_index

strategy = tfdist.create_strategy()
worker = worker_index(strategy)
tf.keras.backend.set_floatx("float64")
with written_by_chief("data", strategy) as folder:
    write_tfrecords((b"%d" % i for i in range(60)), os.path.join(folder, "train"), num_shards=4)


def parse(record):
    number = tf.strings.to_number(record, tf.float64) / 60
    return number[None], number[None]


def weights(data, fits, epochs):
    with strategy.scope():
        layer = tf.keras.layers.Dense(1, kernel_initializer="zeros")
        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), layer])
        model.compile(tf.keras.optimizers.SGD(0.5), "mse")
    for _ in range(fits):
        model.fit(data, epochs=epochs, verbose=0)
    return [value.ravel().tolist() for value in model.get_weights()]


def read(files, **options):
    return distribute_files(strategy, files, global_batch_size=8, **{"parse_fn": parse, **options})


def error(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def fail(record):
    raise ValueError("no such field")


found = {
    "worker": worker,
    "one": weights(read("data/train-*"), 1, 3),
    "three": weights(read("data/train-*"), 3, 1),
    "no files": error(lambda: read("data/train-*" if worker == 0 else "nowhere/train-*")),
    "parse": error(lambda: read("data/train-*", parse_fn=fail if worker == 0 else parse)),
    "again": weights(read("data/train-*"), 1, 3),
}
print("RESULT", json.dumps(found), flush=True)
"""


def test_two_workers_go_on_in_further_fits_and_fail_together(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = launch("--workers", "2", "program.py", cwd=tmp_path, deadline_seconds=150)
    assert ended.code == 0
    first, second = sorted(
        (json.loads(text) for text in re.findall(r"RESULT (\{.*\})", ended.text)), key=lambda one: one["worker"]
    )
    assert first["one"] == first["three"] == first["again"] == second["one"] == second["three"]
    assert second["no files"] == (
        "ValueError: expected files that match 'nowhere/train-*', received none; check the pattern."
    )
    assert first["no files"] == (
        "OSError: expected every worker to find its files in distribute_files, received an error on worker 1; see the "
        "log of that worker."
    )
    assert "ValueError: no such field" in first["parse"]
    assert second["parse"] == (
        "OSError: expected every worker to parse its first record in distribute_files, received an error on worker 0; "
        "see the log of that worker."
    )
