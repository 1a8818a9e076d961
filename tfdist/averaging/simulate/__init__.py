"""A simulator of training with few meetings: what N workers compute, and when, in float64 NumPy, without TensorFlow.

The functions are deterministic and know nothing of devices: the gradients come from a function of worker, step and
weights. Tests compare the code for TensorFlow with them, and they help to plan for more workers than there are.

- `local_sgd`: local steps and meetings, with the outer rules `Average`, `BlockMomentum`, `Nesterov`, `ElasticAverage`.
- `d_psgd`, `choco_sgd`, `ad_psgd`: each worker averages with a few peers.
- `asynchronous`: a parameter server, with the rules of `Staleness`.

Example:
    >>> import numpy as np
    >>> from tfdist.averaging import simulate
    >>> def gradient(worker, step, weights):  # of (x - worker)**2 / 2, from one row
    ...     return [weights[0] - worker], 1
    >>> result = simulate.local_sgd(
    ...     gradient,
    ...     [np.array(4.0)],
    ...     workers=3,
    ...     steps=8,
    ...     optimizer=simulate.SGD(0.5),
    ...     rounds=simulate.Rounds(every=4),
    ... )
    >>> result.weights[0].round(4)
    array([1.0117, 1.0117, 1.0117])
"""

from tfdist.averaging.simulate.arrivals import Arrival, AsynchronousResult
from tfdist.averaging.simulate.asynchronous import Staleness, asynchronous, pushes
from tfdist.averaging.simulate.gossip import GossipResult, ad_psgd, choco_sgd, d_psgd, top_k
from tfdist.averaging.simulate.local import LocalResult, Rounds, local_sgd
from tfdist.averaging.simulate.optimizers import SGD, Adam
from tfdist.averaging.simulate.outer import Average, BlockMomentum, ElasticAverage, Nesterov
from tfdist.averaging.simulate.stacked import AllWorkers

__all__ = [
    "Adam",
    "AllWorkers",
    "Arrival",
    "AsynchronousResult",
    "Average",
    "BlockMomentum",
    "ElasticAverage",
    "GossipResult",
    "LocalResult",
    "Nesterov",
    "Rounds",
    "SGD",
    "Staleness",
    "ad_psgd",
    "asynchronous",
    "choco_sgd",
    "d_psgd",
    "local_sgd",
    "pushes",
    "top_k",
]
