"""What `tfdist train` says at its end."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np


def weights_checksum(model: Any) -> str:
    """Returns 16 hexadecimal digits that two models share only if their weights are equal to the last bit.

    Args:
        model: a built Keras model.
    """
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """The outcome of a training.

    Attributes:
        strategy: class name of the strategy.
        num_workers: how many tasks trained.
        num_replicas: replicas in sync.
        steps: steps of the optimizer.
        samples_per_second: over all replicas, after the first step.
        accuracy: on held-out data, 0 to 1.
        loss: on held-out data.
        weights: checksum of the model's weights.
        files: what was written, by kind.
        gradients: bytes that a replica sent for them, where they were compressed.
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
        """Returns what workers can be compared by, in one line."""
        return f"accuracy {self.accuracy:.4f}, loss {self.loss:.8f}, steps {self.steps}, weights {self.weights}"

    def print(self) -> None:
        """Prints a table."""
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


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
