"""Mends of fit, evaluate and predict on a parameter-server cluster, whose steps run on the workers."""
