"""Mends of the devices that a strategy finds."""
