"""Mends of the data that fit, evaluate and predict read."""
