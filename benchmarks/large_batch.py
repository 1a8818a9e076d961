"""Compares the accuracy of training with small and large batches: a small CNN on Fashion-MNIST, equal epochs.

Each method with a scaling rule has the same tuning budget: four learning rates at a batch size of 256 and four at 4096,
with one seed, compared on 5,000 images that are held out of the training set. The rule scales the best rate at 256 for
the batch sizes 32 and 1024, and the best rate at 4096 for 8192. The method without a rule uses the best of four rates
at 256 for all batch sizes. Then each method is trained with the chosen rates and all seeds, and tested on the test set.

    python benchmarks/large_batch.py --output large-batch --write docs/benchmarks/large_batch.md

Runs whose results are in the output folder are not repeated. The program needs the data set of the Debian package
dataset-fashion-mnist, or the files that keras.datasets.fashion_mnist.load_data() downloads.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

from documents import replace_tables

BATCHES = (32, 256, 1024, 4096, 8192)
# The batch size at which the learning rate for each batch size is tuned.
TUNED = {32: 256, 256: 256, 1024: 256, 4096: 4096, 8192: 4096}
HELD_OUT = 5_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """An optimizer and the rule that adapts its learning rate to the batch size.

    Attributes:
        optimizer: a name that create_optimizer knows.
        rates: learning rates to try, stated for a batch size of 256.
        rule: scaling of the rate with the batch size, "linear" or "sqrt"; None uses the best rate at 256 for all sizes.
        warmup_epochs: length of the linear warmup.
        weight_decay: weight decay of the optimizer.
        options: further arguments of create_optimizer.
    """

    optimizer: str
    rates: tuple[float, ...]
    rule: str | None
    warmup_epochs: float
    weight_decay: float = 0.0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


METHODS = {
    "SGD, rate of 256, no warmup": Method(
        optimizer="momentum_corrected_sgd", rates=(0.025, 0.05, 0.1, 0.2), rule=None, warmup_epochs=0, weight_decay=1e-4
    ),
    "SGD, scaled, warmup": Method(
        optimizer="momentum_corrected_sgd",
        rates=(0.003125, 0.00625, 0.0125, 0.025),
        rule="linear",
        warmup_epochs=2,
        weight_decay=1e-4,
    ),
    "Adam, scaled, warmup": Method(optimizer="adam", rates=(1e-3, 2e-3, 4e-3, 8e-3), rule="sqrt", warmup_epochs=2),
    # LARS updates batch normalization and biases with the rate itself, without a trust ratio. A larger trust
    # coefficient (eeta) allows a rate that is as small as that of SGD.
    "LARS": Method(
        optimizer="lars",
        rates=(0.025, 0.05, 0.1, 0.2),
        rule="sqrt",
        warmup_epochs=2,
        weight_decay=1e-4,
        options={"eeta": 0.05},
    ),
    "LAMB": Method(
        optimizer="lamb", rates=(3.5e-3, 7e-3, 1.4e-2, 2.8e-2), rule="sqrt", warmup_epochs=4, weight_decay=0.01
    ),
}


def train(method: str, batch: int, rate: float, seed: int, epochs: int) -> dict[str, float]:
    """Trains once and returns the accuracies on the held-out images and on the test set."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from tfdist.optimizers import create_optimizer
    from tfdist.train.data import fashion_mnist_images

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(seed)
    images_of = fashion_mnist_images()
    (x, y), (u, v) = images_of["train"], images_of["eval"]
    count = len(x) - HELD_OUT
    steps = count // batch
    chosen = METHODS[method]
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = create_optimizer(
        chosen.optimizer,
        learning_rate=rate,
        learning_rate_scaling=chosen.rule or "none",
        global_batch_size=batch,
        base_batch_size=256 if chosen.rule else None,
        steps_per_epoch=steps,
        epochs=epochs,
        warmup_epochs=chosen.warmup_epochs,
        learning_rate_decay="cosine",
        weight_decay=chosen.weight_decay,
        exclude_from_weight_decay=("batch_normalization", "bias") if chosen.weight_decay else (),
        **chosen.options,
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)
    images, labels = tf.constant(x[:count]), tf.constant(y[:count])

    def scaled(values: tf.Tensor) -> tf.Tensor:
        return tf.cast(values, tf.float32) / 255 - 0.286

    @tf.function
    def epoch(order: tf.Tensor) -> None:
        for k in tf.range(steps):
            rows = order[k * batch : (k + 1) * batch]
            with tf.GradientTape() as tape:
                value = loss(tf.gather(labels, rows), model(scaled(tf.gather(images, rows)), training=True))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

    for number in range(epochs):
        epoch(tf.random.experimental.stateless_shuffle(tf.range(count), (seed, number)))

    def accuracy(images: Any, labels: Any) -> float:
        right = 0
        for first in range(0, len(images), 1000):
            logits = model(scaled(tf.constant(images[first : first + 1000])), training=False)
            right += int((tf.argmax(logits, 1).numpy() == labels[first : first + 1000]).sum())
        return right / len(images)

    return {"held_out": accuracy(x[count:], y[count:]), "test": accuracy(u, v)}


class Runs:
    """Results of training runs by their settings, stored one per line in a file, so that no run is repeated.

    Args:
        path: the file, which may exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, float]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                result = json.loads(line)
                self._known[result.pop("run")] = result

    def make(self, wanted: list[tuple[Any, ...]], jobs: int) -> None:
        """Trains with the settings whose results are missing."""
        missing = sorted({run for run in wanted if self._key(run) not in self._known}, key=lambda run: run[1:4])
        context = multiprocessing.get_context("spawn")
        # A process for each run, because TensorFlow does not free the memory of a run.
        with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
            futures = {pool.submit(train, *run): run for run in missing}
            for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                key = self._key(futures[future])
                self._known[key] = future.result()
                with self._path.open("a") as file:
                    file.write(json.dumps({"run": key, **self._known[key]}) + "\n")
                print(f"{done} of {len(missing)}: {key} {self._known[key]}", flush=True)

    def __getitem__(self, run: tuple[Any, ...]) -> dict[str, float]:
        return self._known[self._key(run)]

    @staticmethod
    def _key(run: tuple[Any, ...]) -> str:
        method, batch, rate, seed, epochs = run
        return f"{method} | batch {batch} | rate {rate:g} | seed {seed} | {epochs} epochs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("large-batch"), help="folder for the results and the plot")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of parallel runs, each on one thread")
    parser.add_argument("--write", type=Path, help="document whose table, between its markers, is replaced")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    runs = Runs(arguments.output / "runs.jsonl")
    tune = [
        (name, batch, rate, 0, arguments.epochs)
        for batch in sorted(set(TUNED.values()))
        for name, method in METHODS.items()
        if method.rule or batch == 256
        for rate in method.rates
    ]
    runs.make(tune, arguments.jobs)

    def best(name: str, batch: int) -> float:
        tuned = TUNED[batch] if METHODS[name].rule else 256
        candidates = [run for run in tune if run[:2] == (name, tuned)]
        return float(max(candidates, key=lambda run: runs[run]["held_out"])[2])

    final = {
        (name, batch): [(name, batch, best(name, batch), seed, arguments.epochs) for seed in range(arguments.seeds)]
        for name in METHODS
        for batch in BATCHES
    }
    runs.make([run for seeds in final.values() for run in seeds], arguments.jobs)
    # The mean and the range of the accuracies of all seeds in per cent, and the chosen rate.
    results = {}
    for key, seeds in final.items():
        accuracies = [100 * runs[run]["test"] for run in seeds]
        results[key] = (statistics.mean(accuracies), max(accuracies) - min(accuracies), seeds[0][2])
    text = table(results, BATCHES)
    print(text)
    plot(results, BATCHES, arguments.output / "large_batch.png")
    if arguments.write:
        replace_tables(arguments.write, text)
        plot(results, BATCHES, arguments.write.with_suffix(".png"))


def table(results: dict[Any, Any], batches: tuple[int, ...]) -> str:
    """Returns the results as a table in Markdown."""
    lines = [f"| | {' | '.join(map(str, batches))} |", f"| --- |{' --- |' * len(batches)}"]
    for name in METHODS:
        cells = [
            f"{mean:.2f} ± {spread / 2:.2f} ({rate:g})"
            for batch in batches
            for mean, spread, rate in [results[name, batch]]
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(results: dict[Any, Any], batches: tuple[int, ...], path: Path) -> None:
    """Draws the test accuracy of every method over the batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.5))
    for name in METHODS:
        points = [results[name, batch] for batch in batches]
        axis.errorbar(
            batches, [p[0] for p in points], yerr=[p[1] / 2 for p in points], marker="o", capsize=3, label=name
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks(batches, list(map(str, batches)))
    axis.set_xlabel("global batch size")
    axis.set_ylabel("test accuracy (%)")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
