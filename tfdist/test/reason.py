"""Says why a process of `tfdist test` ended, from what it has written."""

from __future__ import annotations

import re

from tfdist.test.process import Ended
from tfdist.verify.runner import reason_in

_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


def why(ended: Ended, *, timeout_seconds: float, own: str) -> str:
    r"""Returns why a process ended, and which other tasks TensorFlow has named.

    Args:
        ended: the process.
        timeout_seconds: time limit of the test.
        own: name of the task of this process.

    Example:
        >>> text = "AbortedError: errors from:\n/job:worker/replica:0/task:1\nThe tasks have crashed."
        >>> why(Ended(code=1, is_late=False, text=text), timeout_seconds=60, own="worker 0")
        'failed: AbortedError: errors from:; TensorFlow has lost worker 1'
        >>> why(Ended(code=-9, is_late=False, text=""), timeout_seconds=60, own="worker 0")
        'was ended by SIGKILL'
    """
    if ended.is_late:
        text = f"did not end within {timeout_seconds:g} s"
    elif ended.code < 0:
        text = f"was ended by {ended.signal_name}"
    else:
        text = f"failed: {reason_in(ended.text, exit_code=ended.code)}"
    others = [name for name in lost_tasks(ended.text) if name != own and name not in text]
    return f"{text}; TensorFlow has lost {', '.join(others)}" if others else text


def lost_tasks(text: str) -> list[str]:
    r"""Returns the tasks that lines about a crash name.

    Example:
        >>> lost_tasks("/job:worker/replica:0/task:2/device:CPU:0 is used")
        []
        >>> lost_tasks("error from:\n/job:worker/replica:0/task:1\nThe tasks have crashed.")
        ['worker 1']
    """
    found: dict[str, None] = {}
    named: list[str] = []
    for line in text.splitlines():
        match = _TASK.fullmatch(line.strip())
        if match:
            named.append(f"{match[1]} {match[2]}")
        elif "tasks have crashed" in line:
            found.update(dict.fromkeys(named))
            named = []
    return list(found)
