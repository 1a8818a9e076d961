"""Mends of the devices that a strategy trains on."""
