"""Mends of layers, and the batch normalization of the Keras in use."""
