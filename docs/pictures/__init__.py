"""Draws the pictures of docs/concepts.md and docs/promise.md: python -m docs.pictures."""
