"""Training with fewer meetings: replicas that train on their own for some steps, and then average their weights."""

import tfdist._needs_tensorflow  # noqa: F401
from tfdist.averaging.elastic import ElasticAverage
from tfdist.averaging.local_sgd import LocalSGD
from tfdist.averaging.outer import Average, BlockMomentum, Nesterov, OuterRule

__all__ = ["Average", "BlockMomentum", "ElasticAverage", "LocalSGD", "Nesterov", "OuterRule"]
