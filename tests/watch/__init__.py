"""Tests of tfdist.watch."""
