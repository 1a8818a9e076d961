"""Decides which lines of a task are log lines of its dependencies, which only the log files keep."""

from __future__ import annotations

import re
from collections.abc import Sequence

_STAMP_2 = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: "
_SOURCE = r"\S+\.(?:cc|cpp|c|cu|h|hpp|inc):\d+\] "
_NATIVE = re.compile(
    # The format of absl's logging in C++: severity, month and day, time, thread, file and line. Severity F ends the
    # process. absl's logging in Python writes the same with the name of a .py file: such a line is of the program.
    rf"[IWE]\d{{4}} \d\d:\d\d:[\d.:]+ +\d+ {_SOURCE}"
    # The format of TensorFlow before 2.17.
    rf"|{_STAMP_2}[IWE] {_SOURCE}"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    r"|To enable the following instructions: .* rebuild TensorFlow"
)
# Further lines of a native message that has several.
_NATIVE_FURTHER = re.compile(
    r"/job:\w+/replica:\d+/task:\d+"
    r"|Additional GRPC error information from remote target "
    r'|:(?:[A-Z_]+:Error received from peer|\{"(?:created|file|grpc))'
    r"|The tasks have crashed\. Check the task logs for an earlier error"
    r"|\t ?\[\[\{\{node "
)
# TensorFlow logs the options of a session as text of several lines, which ends with an empty line.
_OPTIONS_BEGIN = re.compile(r".* SessionOptions: ")
_OPTIONS = re.compile(r" *(?:\w+ \{|\}|\w+: \S+)$")
_PACKAGE = r"/\S*/(?:site|dist)-packages/\S+"
# Warnings for the authors of a package. UserWarning and RuntimeWarning may concern the user, wherever they come from.
_WARNING = re.compile(
    rf"{_PACKAGE}:\d+: (?:Deprecation|PendingDeprecation|Future|Import|Resource|Syntax)Warning: "
    rf"|WARNING:tensorflow:From {_PACKAGE}: .* is deprecated"
)
# A log line that does not begin the line.
_JOINED = re.compile(rf"(?<=\S)(?:tfdist: |[IWEF]\d{{4}} \d\d:\d\d:[\d.:]+ +\d+ {_SOURCE}|{_STAMP_2}[IWEF] {_SOURCE})")
_WARNING_FURTHER = re.compile(r"  \S|$|Instructions for updating:$")


def is_noise(line: str, *, after: str | None = None) -> bool:
    r"""Returns whether a line is a log line of a dependency that says nothing about the program.

    Such lines are native log lines of TensorFlow and its libraries, from information to errors, and Python warnings
    that are meant for the authors of a package. Fatal native lines (severity F) and what follows them are no noise, and
    neither is anything that a program writes itself.

    Args:
        line: the line, without colours.
        after: the line before, if it was noise; else None. A message may have several lines.

    Example:
        >>> is_noise("E0000 00:00:1795257845.115898   31274 cuda_platform.cc:52] failed call to cuInit")
        True
        >>> is_noise("F0000 00:00:1795257845.115898   31274 tensor.cc:52] Check failed: dtype() == expected")
        False
        >>> is_noise("/usr/lib/python3/dist-packages/h5py/_hl.py:5: FutureWarning: `np.object` will be removed")
        True
        >>> is_noise("  import numpy", after="/usr/lib/python3/dist-packages/h5py/_hl.py:5: FutureWarning: ...")
        True
        >>> is_noise("/usr/lib/python3/dist-packages/keras/src/trainers/data.py:9: UserWarning: ran out of data")
        False
        >>> is_noise("  import numpy"), is_noise("I1124 16:30:42.123456 139 train.py:12] step 10")
        (False, False)
    """
    if _NATIVE.match(line) or _WARNING.match(line):
        return True
    # An empty line ends a message.
    if not after:
        return False
    if _OPTIONS_BEGIN.match(after) or _OPTIONS.match(after):
        return not line or bool(_OPTIONS.match(line))
    if _WARNING.match(after) or _WARNING_FURTHER.match(after):
        return bool(_WARNING_FURTHER.match(line))
    return bool(_NATIVE_FURTHER.match(line))


def split_log_line(line: str) -> tuple[str, str]:
    r"""Splits a log line from unfinished text, such as a progress bar, behind which a task has written it.

    Returns:
        The text before, and the log line; one of them is empty if the line is not made of two.

    Example:
        >>> split_log_line("3/9 ━━━ 1s - loss: 0.5tfdist: a snapshot every 152 steps")
        ('3/9 ━━━ 1s - loss: 0.5', 'tfdist: a snapshot every 152 steps')
        >>> split_log_line("see tfdist: the manual")
        ('see tfdist: the manual', '')
    """
    found = _JOINED.search(line)
    return (line[: found.start()], line[found.start() :]) if found else (line, "")


class NoiseFilter:
    """Leaves noise out of the lines of one task, and counts the lines that it leaves out.

    Example:
        >>> noise = NoiseFilter()
        >>> noise.without(["W0000 00:00:1795257882.676926   31522 dataset.cc:997] Input of ...", "Epoch 1/3"])
        ['Epoch 1/3']
        >>> noise.left_out
        1
    """

    def __init__(self) -> None:
        self._after: str | None = None
        self.left_out = 0

    def without(self, lines: Sequence[str]) -> list[str]:
        """Returns the lines that are not noise.

        Args:
            lines: the next lines of the task.
        """
        kept = []
        for line in lines:
            if is_noise(line, after=self._after):
                self._after = line
                self.left_out += 1
            else:
                self._after = None
                kept.append(line)
        return kept
