"""Optimizers of either Keras: the base of tfdist's own, DistributedOptimizer's adapters, and mends."""
