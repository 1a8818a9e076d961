"""Mends of losses on several replicas."""
