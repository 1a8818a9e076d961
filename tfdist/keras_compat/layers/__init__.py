"""Batch normalization of either Keras, and mends of layers."""
