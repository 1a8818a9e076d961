"""Mends of files that several workers write."""
