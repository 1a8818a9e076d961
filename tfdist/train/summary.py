"""The summary that `tfdist train` prints at its end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from typing import Any

import numpy as np


def weights_checksum(model: Any) -> str:
    """Returns a checksum of 16 hexadecimal digits; it differs if any bit of the weights differs.

    Args:
        model: a built Keras model.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.train.summary import weights_checksum
        >>> layers = [tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")]
        >>> weights_checksum(tf.keras.Sequential(layers))
        '5f2fa7795ceb5867'
    """
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """The results of a training.

    Attributes:
        strategy: class name of the strategy.
        num_workers: number of workers.
        num_replicas: number of replicas in sync.
        steps: number of steps of the optimizer.
        samples_per_second: records per second over all replicas, without the first step of each epoch.
        accuracy: accuracy on the held-out data, from 0 to 1.
        loss: loss on the held-out data.
        weights: checksum of the weights, from `weights_checksum`.
        files: names of the files that were written, by kind.
        gradients: phrase with the bytes of gradients that a replica sent; empty without compression.

    Example:
        >>> from tfdist.train.summary import Summary
        >>> summary = Summary(
        ...     strategy="MirroredStrategy", num_workers=1, num_replicas=2, steps=440, samples_per_second=9000.0,
        ...     accuracy=0.98, loss=0.07, weights="0123456789abcdef", files={"model": "tfdist-model/model.keras"},
        ... )
        >>> summary.line()
        'accuracy 0.9800, loss 0.07000000, steps 440, weights 0123456789abcdef'
    """

    strategy: str
    num_workers: int
    num_replicas: int
    steps: int
    samples_per_second: float
    accuracy: float
    loss: float
    weights: str
    files: dict[str, str]
    gradients: str = ""

    def line(self) -> str:
        """Returns one line with the results that must be the same on every worker."""
        return f"accuracy {self.accuracy:.4f}, loss {self.loss:.8f}, steps {self.steps}, weights {self.weights}"

    def next_steps(self) -> str:
        """Returns the line that says what to do with the files.

        Example:
            >>> from tfdist.train.summary import Summary
            >>> summary = Summary(
            ...     strategy="OneDeviceStrategy", num_workers=1, num_replicas=1, steps=440, samples_per_second=900.0,
            ...     accuracy=0.98, loss=0.07, weights="01", files={"model": "m/model.keras", "logs": "m/logs"},
            ... )
            >>> summary.next_steps()
            'next: `tensorboard --logdir m/logs` shows the curves; tf.keras.models.load_model("m/model.keras") loads ...
        """
        logs, model = shlex.quote(self.files["logs"]), json.dumps(self.files["model"])
        return (
            f"next: `tensorboard --logdir {logs}` shows the curves; tf.keras.models.load_model({model}) loads the model"
        )

    def print(self) -> None:
        """Prints the summary as a table, and what to do next."""
        from rich.console import Console
        from rich.table import Table

        table = Table(title="tfdist train", show_header=False)
        rows = {
            "strategy": f"{self.strategy}, {_count(self.num_workers, 'worker')}, "
            f"{_count(self.num_replicas, 'replica')} in sync",
            "accuracy (held-out)": f"{self.accuracy:.4f}",
            "loss (held-out)": f"{self.loss:.4f}",
            "steps": str(self.steps),
            "samples/s": f"{self.samples_per_second:,.0f}",
            **({"gradients": self.gradients} if self.gradients else {}),
            "weights": self.weights,
            **self.files,
        }
        for name, value in rows.items():
            table.add_row(name, value)
        Console(width=100).print(table)
        print(self.next_steps(), flush=True)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
