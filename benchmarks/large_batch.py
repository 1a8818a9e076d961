"""Do large batches learn as well as small ones? A small CNN on Fashion-MNIST, for a fixed number of epochs.

Each optimizer has the same tuning budget: four learning rates at a batch of 256 and four at 4096, one seed, judged on
5,000 images that are held out of the training set. The other batches take the rate of their neighbour (256 for 32 and
1024, 4096 for 8192) by the optimizer's rule. The best rate is trained with all seeds and judged on the test set:

    python benchmarks/large_batch.py --output large-batch --write docs/large_batch.md

Runs that are in the output folder already are not repeated. Needs the data set of the Debian package
dataset-fashion-mnist, or what keras.datasets.fashion_mnist.load_data() has downloaded.
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

BATCHES = (32, 256, 1024, 4096, 8192)
# Where the rate of each batch is tuned.
TUNED = {32: 256, 256: 256, 1024: 256, 4096: 4096, 8192: 4096}
HELD_OUT = 5_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """An optimizer with its way of adapting to the batch.

    Attributes:
        optimizer: a name that create_optimizer knows.
        rates: the grid at a batch of 256.
        rule: how the rate is scaled with the batch; None takes the rate that is best at 256 for all batches.
        warmup_epochs: of a linear warmup.
        weight_decay: of the optimizer.
        options: of the optimizer.
    """

    optimizer: str
    rates: tuple[float, ...]
    rule: str | None
    warmup_epochs: float
    weight_decay: float = 0.0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


METHODS = {
    "SGD, rate of 256, no warmup": Method(
        optimizer="sgd", rates=(0.025, 0.05, 0.1, 0.2), rule=None, warmup_epochs=0, weight_decay=1e-4
    ),
    "SGD, scaled, warmup": Method(
        optimizer="sgd", rates=(0.003125, 0.00625, 0.0125, 0.025), rule="linear", warmup_epochs=2, weight_decay=1e-4
    ),
    "Adam, scaled, warmup": Method(optimizer="adam", rates=(1e-3, 2e-3, 4e-3, 8e-3), rule="sqrt", warmup_epochs=2),
    # Batch norm and biases move by the rate itself: a larger trust coefficient keeps it to what SGD's would be.
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
    """Trains once and returns the accuracy on held-out images and on the test set."""
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
        global_batch_size=batch,
        base_batch_size=256 if chosen.rule else batch,
        scaling=chosen.rule or "linear",
        steps_per_epoch=steps,
        epochs=epochs,
        warmup_epochs=chosen.warmup_epochs,
        decay="cosine",
        weight_decay=chosen.weight_decay,
        exclude=("batch_normalization", "bias") if chosen.weight_decay else (),
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
    """Results by their settings, kept in a file a line, so that nothing is run twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, float]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                one = json.loads(line)
                self._known[one.pop("run")] = one

    def make(self, wanted: list[tuple[Any, ...]], jobs: int) -> None:
        """Trains what is not known yet."""
        missing = sorted({run for run in wanted if self._key(run) not in self._known}, key=lambda run: run[1:4])
        context = multiprocessing.get_context("spawn")
        # A process a run: TensorFlow gives nothing back.
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
    parser.add_argument("--output", type=Path, default=Path("large-batch"), help="folder of runs and plot")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time, each on one thread")
    parser.add_argument("--write", type=Path, help="document to put the table into, between its markers")
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
        found = [run for run in tune if run[:2] == (name, tuned)]
        return float(max(found, key=lambda run: runs[run]["held_out"])[2])

    final = {
        (name, batch): [(name, batch, best(name, batch), seed, arguments.epochs) for seed in range(arguments.seeds)]
        for name in METHODS
        for batch in BATCHES
    }
    runs.make([run for several in final.values() for run in several], arguments.jobs)
    results = {
        key: (100 * statistics.mean(found), 100 * (max(found) - min(found)), several[0][2])
        for key, several in final.items()
        for found in [[runs[run]["test"] for run in several]]
    }
    text = table(results, BATCHES)
    print(text)
    plot(results, BATCHES, arguments.output / "large_batch.png")
    if arguments.write:
        before, rest = arguments.write.read_text().split("<!-- table -->\n")
        after = rest.split("<!-- end of table -->\n")[1]
        arguments.write.write_text(f"{before}<!-- table -->\n{text}\n<!-- end of table -->\n{after}")
        plot(results, BATCHES, arguments.write.with_suffix(".png"))


def table(results: dict[Any, Any], batches: tuple[int, ...]) -> str:
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
