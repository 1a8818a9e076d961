"""Follows the axis of the rows through the operations of a loss function."""
