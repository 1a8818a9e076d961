"""Recognizes TensorFlow's own information lines, of which every task writes a dozen before its first step."""

from __future__ import annotations

import re
from collections.abc import Sequence

_INFO = re.compile(
    # The format of absl's logging in C++: severity, month and day, time, thread, file and line.
    r"^I\d{4} \d\d:\d\d:[\d.:]+ +\d+ \S+:\d+\] "
    r"|^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    r"|^/job:\w+/replica:\d+/task:\d+$"
    r"|^To enable the following instructions: .* rebuild TensorFlow"
)


def without_tensorflow_info(lines: Sequence[str]) -> list[str]:
    r"""Returns all lines but TensorFlow's information lines; TensorFlow's warnings and errors are kept.

    Example:
        >>> without_tensorflow_info(["I0000 00:00:1795257841.957614   31274 port.cc:153] oneDNN is on.", "Epoch 1/3"])
        ['Epoch 1/3']
    """
    return [line for line in lines if not _INFO.match(line)]
