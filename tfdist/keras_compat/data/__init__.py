"""Mends of what fit does with data."""
