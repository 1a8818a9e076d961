"""What happens at a meeting of the workers: the outer rules.

x are the weights after the last meeting, x_i those of worker i, w_i the part of the rows since the last meeting that
worker i had, and d = sum of w_i (x - x_i).
"""

from __future__ import annotations

from dataclasses import dataclass

from tfdist.averaging.simulate.stacked import Arrays


@dataclass(frozen=True)
class Average:
    """x = x - d, which is the weighted mean of the x_i: Local SGD.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", arXiv:1805.09767.

    Example:
        >>> import numpy as np
        >>> Average().moved([np.array(1.0)], [np.array(0.25)], [np.array(0.0)])[0]
        [np.float64(0.75)]
    """

    def moved(self, anchor: Arrays, difference: Arrays, momentum: Arrays) -> tuple[Arrays, Arrays]:
        """Returns the weights and the outer momentum after a meeting."""
        return [x - d for x, d in zip(anchor, difference, strict=True)], momentum


@dataclass(frozen=True, kw_only=True)
class BlockMomentum:
    """u = momentum * u + d, x = x - rate * u: BMUF, and SlowMo without its division by the learning rate.

    Args:
        rate: the outer learning rate.
        momentum: the outer momentum.

    Source: Chen and Huo, "Scalable training of deep learning machines by incremental block training", ICASSP 2016; Wang
    et al., "SlowMo", arXiv:1910.00643.

    Example:
        >>> import numpy as np
        >>> rule = BlockMomentum(momentum=0.5)
        >>> rule.moved([np.array(1.0)], [np.array(0.25)], [np.array(0.5)])
        ([np.float64(0.5)], [np.float64(0.5)])
    """

    rate: float = 1.0
    momentum: float

    def __post_init__(self) -> None:
        _check(self.rate, self.momentum)

    def moved(self, anchor: Arrays, difference: Arrays, momentum: Arrays) -> tuple[Arrays, Arrays]:
        """Returns the weights and the outer momentum after a meeting."""
        new = [self.momentum * u + d for u, d in zip(momentum, difference, strict=True)]
        return [x - self.rate * u for x, u in zip(anchor, new, strict=True)], new


@dataclass(frozen=True, kw_only=True)
class Nesterov:
    """u = momentum * u + d, x = x - rate * (d + momentum * u): DiLoCo.

    Args:
        rate: the outer learning rate.
        momentum: the outer momentum.

    Source: Douillard et al., "DiLoCo", arXiv:2311.08105. The rule is that of torch.optim.SGD with nesterov=True.

    Example:
        >>> import numpy as np
        >>> rule = Nesterov(rate=1.0, momentum=0.5)
        >>> rule.moved([np.array(1.0)], [np.array(0.25)], [np.array(0.5)])
        ([np.float64(0.5)], [np.float64(0.5)])
    """

    rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(self.rate, self.momentum)

    def moved(self, anchor: Arrays, difference: Arrays, momentum: Arrays) -> tuple[Arrays, Arrays]:
        """Returns the weights and the outer momentum after a meeting."""
        new = [self.momentum * u + d for u, d in zip(momentum, difference, strict=True)]
        steps = [d + self.momentum * u for d, u in zip(difference, new, strict=True)]
        return [x - self.rate * step for x, step in zip(anchor, steps, strict=True)], new


@dataclass(frozen=True, kw_only=True)
class ElasticAverage:
    """Workers and a centre c attract each other: x_i = x_i - rate * (x_i - c), c = c + sum of rate * (x_i - c): EASGD.

    Both use the weights before the meeting. The rows of the workers do not matter. The workers keep their own slots.

    Args:
        rate: the strength of the attraction; the sum over the workers should be below 1.

    Source: Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD", arXiv:1412.6651.

    Example:
        >>> import numpy as np
        >>> rule = ElasticAverage(rate=0.25)
        >>> rule.attracted([np.array([1.0, 3.0])], [np.array(1.0)])
        ([array([1. , 2.5])], [np.float64(1.5)])
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"expected a rate of ElasticAverage above 0, and at most 1, received {self.rate!r}.")

    def attracted(self, weights: Arrays, centre: Arrays) -> tuple[Arrays, Arrays]:
        """Returns the weights of all workers, and the centre, after a meeting."""
        pulls = [self.rate * (x - c) for x, c in zip(weights, centre, strict=True)]
        moved = [x - pull for x, pull in zip(weights, pulls, strict=True)]
        return moved, [c + pull.sum(axis=0) for c, pull in zip(centre, pulls, strict=True)]


Outer = Average | BlockMomentum | Nesterov | ElasticAverage


def _check(rate: float, momentum: float) -> None:
    if not rate > 0:
        raise ValueError(f"expected an outer rate above 0, received {rate!r}.")
    if not 0 <= momentum < 1:
        raise ValueError(f"expected an outer momentum of 0 or more and below 1, received {momentum!r}.")
