"""Compares what the workers are about to train, before the first step and before each variable is made."""
