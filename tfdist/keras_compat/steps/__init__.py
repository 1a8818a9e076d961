"""Mends of training and evaluation steps, and of the logs that they return."""
