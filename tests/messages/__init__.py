"""Finds the messages of tfdist in its source, and writes docs/troubleshooting.md from them and from what to do."""
