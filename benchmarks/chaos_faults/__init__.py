"""The faults of chaos.py: what they are, how they are drawn, and one module for each level at which they are made."""
