"""The version of tfdist."""

__version__ = "0.1.0.dev0"
