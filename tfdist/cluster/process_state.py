"""Reads the state of a process on this machine."""

from __future__ import annotations

from pathlib import Path


def process_state(process: int) -> str:
    """Returns the letter of the state of a process: R, S, D, T (stopped by a signal), t (by a debugger), Z.

    Args:
        process: number of a process on this machine.

    Returns:
        The letter; "" for a process that has ended, and on systems without /proc.

    Example:
        >>> import os
        >>> from tfdist.cluster.process_state import process_state
        >>> process_state(os.getpid()) in "RS"
        True
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name of the program, in parentheses, may contain spaces and parentheses.
    return text.rpartition(")")[2].split()[0]
