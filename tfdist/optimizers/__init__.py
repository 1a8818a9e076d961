"""Optimizers for large batches: LAMB, LARS, momentum-corrected SGD, warmup, learning-rate scaling, create_optimizer."""

import tfdist._needs_tensorflow  # noqa: F401
from tfdist.optimizers.create_optimizer import create_optimizer
from tfdist.optimizers.distributed import DistributedOptimizer, gradient_traffic
from tfdist.optimizers.lamb import LAMB
from tfdist.optimizers.lars import LARS
from tfdist.optimizers.momentum_corrected_sgd import MomentumCorrectedSGD
from tfdist.optimizers.scaling import epochs_to_steps, scale_learning_rate, steps_per_epoch
from tfdist.optimizers.warmup import LinearWarmup

__all__ = [
    "DistributedOptimizer",
    "LAMB",
    "LARS",
    "LinearWarmup",
    "MomentumCorrectedSGD",
    "create_optimizer",
    "epochs_to_steps",
    "gradient_traffic",
    "scale_learning_rate",
    "steps_per_epoch",
]
