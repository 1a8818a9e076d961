"""Runs Keras's own tests of distribution and training, with and without mends: `python -m tests.upstream`."""
