"""Mends of what fit does in and around a step."""
