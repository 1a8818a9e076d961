"""The log lines that tfdist itself writes: one logger, visible without any set-up by the user."""

from __future__ import annotations

import logging
import sys


def get_logger() -> logging.Logger:
    """Returns the `tfdist` logger; it writes to stderr unless the program has configured logging itself.

    Example:
        >>> from tfdist._log import get_logger
        >>> get_logger().name
        'tfdist'
    """
    logger = logging.getLogger("tfdist")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("tfdist: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger
