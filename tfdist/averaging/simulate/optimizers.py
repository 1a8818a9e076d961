"""The optimizers of the workers, by the rules of Keras, in float64.

The state of an optimizer (its slots) is a dictionary of arrays like the weights. All operations are elementwise, so
that the same code updates the weights of one worker and the stacked weights of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfdist.averaging.simulate.stacked import Arrays

Slots = dict[str, Arrays]
Rate = float | Callable[[int], float]


def _rate(learning_rate: Rate, step: int) -> float:
    return learning_rate(step) if callable(learning_rate) else learning_rate


@dataclass(frozen=True)
class SGD:
    """Gradient descent by the rule of Keras: m = momentum * m - rate * g, x = x + m.

    Args:
        learning_rate: the rate, or a function of the step, which is counted from 0.
        momentum: 0 for plain gradient descent, which has no slots.
        nesterov: x = x + momentum * m - rate * g with the new m.

    Example:
        >>> sgd = SGD(0.5, momentum=0.9)
        >>> weights, slots = sgd.update([np.array([1.0])], sgd.slots([np.array([1.0])]), [np.array([0.2])], step=0)
        >>> weights, slots
        ([array([0.9])], {'momentum': [array([-0.1])]})
    """

    learning_rate: Rate
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum <= 1:
            raise ValueError(f"expected momentum from 0 to 1, received {self.momentum!r}.")
        if self.nesterov and not self.momentum:
            raise ValueError("expected momentum above 0 with nesterov=True, received 0.")

    def slots(self, weights: Arrays) -> Slots:
        """Returns the slots before the first step."""
        return {"momentum": [np.zeros_like(x) for x in weights]} if self.momentum else {}

    def update(
        self, weights: Arrays, slots: Slots, gradients: Arrays, *, step: int, scale: float = 1.0
    ) -> tuple[Arrays, Slots]:
        """Returns the new weights and slots; `scale` multiplies the learning rate."""
        rate = _rate(self.learning_rate, step) * scale
        if not self.momentum:
            return [x - rate * g for x, g in zip(weights, gradients, strict=True)], {}
        moved = [self.momentum * m - rate * g for m, g in zip(slots["momentum"], gradients, strict=True)]
        if self.nesterov:
            ahead = [self.momentum * m - rate * g for m, g in zip(moved, gradients, strict=True)]
            return [x + a for x, a in zip(weights, ahead, strict=True)], {"momentum": moved}
        return [x + m for x, m in zip(weights, moved, strict=True)], {"momentum": moved}


@dataclass(frozen=True)
class Adam:
    """Adam by the rule of Keras 3, where epsilon is added to the root of the uncorrected second moment.

    Args:
        learning_rate: the rate, or a function of the step, which is counted from 0.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the second moment.

    Example:
        >>> adam = Adam(0.001)
        >>> weights, _ = adam.update([np.array([1.0])], adam.slots([np.array([1.0])]), [np.array([3.0])], step=0)
        >>> weights[0].round(6)
        array([0.999])
    """

    learning_rate: Rate = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def slots(self, weights: Arrays) -> Slots:
        """Returns the slots before the first step."""
        return {name: [np.zeros_like(x) for x in weights] for name in ("momentum", "velocity")}

    def update(
        self, weights: Arrays, slots: Slots, gradients: Arrays, *, step: int, scale: float = 1.0
    ) -> tuple[Arrays, Slots]:
        """Returns the new weights and slots; `scale` multiplies the learning rate."""
        alpha = _rate(self.learning_rate, step) * scale
        alpha *= np.sqrt(1 - self.beta_2 ** (step + 1)) / (1 - self.beta_1 ** (step + 1))
        first = [m + (g - m) * (1 - self.beta_1) for m, g in zip(slots["momentum"], gradients, strict=True)]
        second = [v + (g * g - v) * (1 - self.beta_2) for v, g in zip(slots["velocity"], gradients, strict=True)]
        moved = [x - alpha * m / (np.sqrt(v) + self.epsilon) for x, m, v in zip(weights, first, second, strict=True)]
        return moved, {"momentum": first, "velocity": second}


Optimizer = SGD | Adam
