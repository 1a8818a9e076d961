"""Optimizers for Keras 2 and 3: base class of tfdist's optimizers, adapters of DistributedOptimizer, and mends."""
