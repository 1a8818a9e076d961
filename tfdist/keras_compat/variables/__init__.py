"""Mends of random numbers and counters."""
