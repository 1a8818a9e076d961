"""A simulator of training with few meetings: what N workers compute, and when, in float64 NumPy, without TensorFlow.

The functions are deterministic and know nothing of devices: the gradients come from a function of worker, step and
weights. Tests compare the code for TensorFlow with them, except `ad_psgd`, which is here alone. They help to plan for
more workers than there are.

- `local_sgd`: local steps and meetings, with the outer rules `Average`, `BlockMomentum`, `Nesterov`, `ElasticAverage`.
- `d_psgd`, `choco_sgd`, `ad_psgd`: each worker averages with a few peers.
- `asynchronous`: a parameter server, with the rules of `Staleness`.
- `synchronous_times`, `local_times`, `gossip_times`: when steps end, from the speed of `Machines` and of a `Link`.
- `predict`: the time until a loss of a convex problem. `python -m tfdist.averaging.simulate` prints a table of it.

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
from tfdist.averaging.simulate.methods import Gossip, ParameterServer, Synchronous
from tfdist.averaging.simulate.optimizers import SGD, Adam
from tfdist.averaging.simulate.outer import Average, BlockMomentum, ElasticAverage, Nesterov
from tfdist.averaging.simulate.predict import Prediction, fastest, predict
from tfdist.averaging.simulate.problems import LogisticRegression, NoisyQuadratic
from tfdist.averaging.simulate.stacked import AllWorkers
from tfdist.averaging.simulate.times import (
    Link,
    Machines,
    all_reduce_seconds,
    gossip_times,
    local_times,
    synchronous_times,
)

__all__ = [
    "Adam",
    "AllWorkers",
    "Arrival",
    "AsynchronousResult",
    "Average",
    "BlockMomentum",
    "ElasticAverage",
    "Gossip",
    "GossipResult",
    "Link",
    "LocalResult",
    "LogisticRegression",
    "Machines",
    "Nesterov",
    "NoisyQuadratic",
    "ParameterServer",
    "Prediction",
    "Rounds",
    "SGD",
    "Staleness",
    "Synchronous",
    "ad_psgd",
    "all_reduce_seconds",
    "asynchronous",
    "choco_sgd",
    "d_psgd",
    "fastest",
    "gossip_times",
    "local_sgd",
    "local_times",
    "predict",
    "pushes",
    "synchronous_times",
    "top_k",
]
