"""Mends of random numbers and of counters."""
