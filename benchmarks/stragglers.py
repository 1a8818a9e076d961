"""Compares synchronous steps with steps on parameter servers, where one worker of four is four times slower.

Every contender trains a small network with layer normalization on the same records of Fashion-MNIST, whose pixels are
standardized. In each step a worker multiplies matrices besides, so that the steps take long enough. With
`--slow-by quota`, each fast worker has 0.4 of a core and the last one 0.1, by a cgroup of Linux, which needs root. With
`--slow-by wait` nothing is multiplied: after its gradients a fast worker waits for --seconds, and the last one for four
times as long. Each worker has batches of --batch records.

The learning rate of a contender is for an update of the records of all workers, and in proportion for an update of
fewer. It grows in the first tenth of the updates, and then decays to 0. Rates and momenta were chosen by the accuracy
on the same test set.

    python benchmarks/stragglers.py --write docs/benchmarks/stragglers.md

With `--runs`, the contenders alternate, and the table shows medians, and the lowest and the highest accuracy.

The program needs the data set of the Debian package dataset-fashion-mnist, or the files that
keras.datasets.fashion_mnist.load_data() downloads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cpu_quotas import cpu_quotas, enter
from documents import replace_tables

FOLDER = Path(__file__).parent
WORKERS = 4
SLOWER = 4
# The three fast workers and the slow one leave 0.7 of two cores to the parameter server and the coordinator.
FAST_CORES = 0.4
WARMUP = 0.1
DEADLINE_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to train.

    Attributes:
        staleness: options of Staleness; None is without staleness.
        rate: the learning rate for an update of the records of all workers.
        momentum: the momentum of an update.
    """

    staleness: dict[str, Any] | None = None
    rate: float = 0.6
    momentum: float = 0.5


SOFT = {"scale": None, "soft_sync": 3}
# The synchronous contender is on workers alone, the others are on a parameter server.
CONTENDERS = {
    "synchronous": Contender(rate=0.2, momentum=0.9),
    "asynchronous": Contender(),
    "asynchronous, momentum 0.9": Contender(rate=0.1, momentum=0.9),
    "asynchronous, 1/tau": Contender(staleness={}, rate=1.2),
    "asynchronous, drop_above=6": Contender(staleness={"scale": None, "drop_above": 6}),
    "soft_sync=3": Contender(staleness=SOFT),
    "soft_sync=3, drop_above=0": Contender(staleness={**SOFT, "drop_above": 0}, rate=0.2, momentum=0.9),
    "soft_sync=3, bound=4": Contender(staleness={**SOFT, "bound": 4}),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--contender", action="append", choices=tuple(CONTENDERS), help="may be repeated; all if left out"
    )
    parser.add_argument("--runs", type=int, default=1, help="runs of each contender, in turn")
    parser.add_argument("--slow-by", choices=("quota", "wait"), default="quota", help="what makes a worker slow")
    parser.add_argument("--products", type=int, default=20, help="products of matrices in a step, with a quota")
    parser.add_argument("--seconds", type=float, default=0.06, help="how long a fast worker waits in a step, without")
    parser.add_argument("--batch", type=int, default=64, help="records of a worker in a step")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--write", type=Path, help="document whose table, between its markers, is replaced")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--group", type=Path, action="append", default=[], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.result:
        train(arguments)
        return
    unused = "--seconds" if arguments.slow_by == "quota" else "--products"
    if any(word.partition("=")[0] == unused for word in sys.argv[1:]):
        raise SystemExit(f"expected no {unused} with --slow-by {arguments.slow_by}, received it; leave it out.")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.contender or CONTENDERS}
    for _ in range(arguments.runs):
        for name, runs in results.items():
            if arguments.slow_by == "wait":
                runs.append(measure(name, [], arguments))
                continue
            with cpu_quotas([FAST_CORES] * (WORKERS - 1) + [FAST_CORES / SLOWER]) as groups:
                runs.append(measure(name, groups, arguments))
    text = table(results)
    print(text)
    if arguments.write:
        replace_tables(arguments.write, text)


def measure(name: str, groups: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs one contender in a cluster on this machine, with a cgroup for each worker or none; returns its result."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "tfdist", "launch", f"--workers={WORKERS}"]
        command += [] if name == "synchronous" else ["--ps=1"]
        command += [f"--timeout-seconds={DEADLINE_SECONDS}", str(Path(__file__).absolute()), f"--contender={name}"]
        command += [f"--{option}={getattr(arguments, option)}" for option in ("products", "seconds", "batch", "epochs")]
        command += [f"--slow-by={arguments.slow_by}", *(f"--group={group}" for group in groups)]
        command += [f"--result={result}"]
        environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "CUDA_VISIBLE_DEVICES": "-1"}
        environment |= {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, cwd=folder, env=environment)
        values = json.loads(result.read_text())
    print(name, values, flush=True)
    return values


def batches(arguments: argparse.Namespace, rows: int) -> Iterator[np.ndarray]:
    """Yields the row numbers of each batch of a worker, in an order that all contenders share."""
    for epoch in range(arguments.epochs):
        order = np.random.default_rng(epoch).permutation(rows)
        for first in range(0, rows - arguments.batch * WORKERS + 1, arguments.batch):
            yield order[first : first + arguments.batch]


def train(arguments: argparse.Namespace) -> None:
    """Trains one contender in a task of the cluster."""
    (name,) = arguments.contender
    contender = CONTENDERS[name]
    import tensorflow as tf

    import tfdist
    from tfdist.averaging import Staleness, staleness_of
    from tfdist.cluster import ClusterConfig
    from tfdist.optimizers import LinearWarmup
    from tfdist.train.data import fashion_mnist_images

    # TensorFlow runs Python code of a step in the coordinator, where each worker that waits keeps a thread.
    tf.config.threading.set_inter_op_parallelism_threads(4 * WORKERS)
    task = ClusterConfig.detect()
    if arguments.group and task.task_type == "worker":
        enter(arguments.group[task.task_index])
    if name == "synchronous":
        strategy = tfdist.create_strategy("multi_worker_mirrored")
        per_update = 1.0
    else:
        staleness = None if contender.staleness is None else Staleness(**contender.staleness)
        strategy = tfdist.create_strategy("parameter_server", staleness=staleness)
        per_update = (staleness.gradients_per_update if staleness else 1) / WORKERS
    splits = fashion_mnist_images()
    (images, labels), (test_images, test_labels) = splits["train"], splits["eval"]
    images, test_images = images.reshape(-1, 784), test_images.reshape(-1, 784)
    chosen = list(batches(arguments, len(images)))
    chosen = chosen[: len(chosen) // WORKERS * WORKERS]
    with strategy.scope():
        tf.keras.utils.set_random_seed(0)
        layers = tf.keras.layers
        # The mean and the standard deviation of the pixels.
        standardized = layers.Rescaling(1 / (255 * 0.353), -0.286 / 0.353)
        hidden = [layers.Dense(128, use_bias=False), layers.LayerNormalization(), layers.Activation("relu")]
        model = tf.keras.Sequential([layers.Input((784,)), standardized, *hidden, layers.Dense(10)])
        updates = len(chosen) / WORKERS / per_update
        rate = tf.keras.optimizers.schedules.PolynomialDecay(contender.rate * per_update, updates, 0.0)
        rate = LinearWarmup(rate, int(WARMUP * updates))
        optimizer = tf.keras.optimizers.SGD(rate, momentum=contender.momentum)
        optimizer.build(model.trainable_variables)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def wait(worker: np.ndarray) -> np.ndarray:
        time.sleep(arguments.seconds * (SLOWER if worker == WORKERS - 1 else 1))
        return worker

    def multiply() -> tf.Tensor:
        matrix = tf.random.uniform((256, 256))
        return tf.foldl(lambda product, _: tf.tanh(product @ matrix), tf.range(arguments.products), matrix)

    def replica_step(worker: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            total = tf.reduce_sum(loss_fn(y, logits)) / arguments.batch / strategy.num_replicas_in_sync
        gradients = tape.gradient(total, model.trainable_variables)
        with tf.control_dependencies(gradients):
            slow = multiply() if arguments.slow_by == "quota" else tf.numpy_function(wait, [worker], tf.int64)
        with tf.control_dependencies([slow]):
            gradients = [tf.identity(gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return total

    @tf.function
    def step(worker: tf.Tensor | None, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if worker is None:
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return strategy.run(replica_step, args=(worker, x, y))

    @tf.function
    def accuracy() -> tf.Tensor:
        logits = model(test_images, training=False)
        return tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == test_labels, tf.float32))

    counts, rank = None, 0
    if name == "synchronous":
        rank = task.task_index
        own = chosen[rank::WORKERS]
        begin = 0.0
        for number, rows in enumerate(own):
            if number == 1:
                begin = time.perf_counter()
            float(strategy.experimental_local_results(step(tf.constant(rank, tf.int64), images[rows], labels[rows]))[0])
        samples, seconds = (len(own) - 1) * WORKERS * arguments.batch, time.perf_counter() - begin
    else:
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        for rows in chosen[:WORKERS]:
            coordinator.schedule(step, args=(None, images[rows], labels[rows]))
        coordinator.join()
        before = staleness_of(optimizer) if staleness else None
        begin = time.perf_counter()
        for rows in chosen[WORKERS:]:
            coordinator.schedule(step, args=(None, images[rows], labels[rows]))
        coordinator.join()
        seconds = time.perf_counter() - begin
        counts = staleness_of(optimizer).since(before) if before is not None else None
        samples = (counts.applied if counts else len(chosen) - WORKERS) * arguments.batch
    result = {
        "samples_per_second": samples / seconds,
        "accuracy": float(accuracy()),
        "updates": int(np.asarray(optimizer.iterations)),
        "dropped": counts.dropped if counts else 0,
        "mean_staleness": counts.mean if counts else None,
        "largest_staleness": counts.largest if counts else None,
    }
    if rank == 0:
        arguments.result.write_text(json.dumps(result))


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Returns the results of each contender's runs as a table in Markdown."""

    def median(runs: list[dict[str, Any]], value: str) -> float:
        return statistics.median(run[value] for run in runs)

    base = median(results["synchronous"], "samples_per_second") if "synchronous" in results else None
    lines = [
        "| contender | momentum, rate | samples/s | over synchronous | accuracy | updates | dropped | "
        "staleness: mean, largest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in results.items():
        speed = median(runs, "samples_per_second")
        accuracies = [run["accuracy"] * 100 for run in runs]
        accuracy = f"{statistics.median(accuracies):.1f} %"
        if len(runs) > 1:
            accuracy += f" ({min(accuracies):.1f} to {max(accuracies):.1f})"
        known = runs[0]["mean_staleness"] is not None
        staleness = f"{median(runs, 'mean_staleness'):.2f}, {median(runs, 'largest_staleness'):.0f}" if known else "-"
        lines.append(
            f"| {name} | {CONTENDERS[name].momentum}, {CONTENDERS[name].rate} | {speed:.0f} | "
            f"{f'{speed / base:.2f}' if base else '-'} | {accuracy} | {median(runs, 'updates'):.0f} | "
            f"{median(runs, 'dropped'):.0f} | {staleness} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
