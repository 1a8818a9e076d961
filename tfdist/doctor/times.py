"""Times: when the parts of an examination end."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """When the parts of an examination end, in seconds of time.monotonic().

    Args:
        start: the beginning.
        files: until when the files of this task must be written.
        meeting: until when all tasks must have met.
        directory: until when the files of the other tasks must be there.
        reports: until when the chief must have all reports.
        end: until when the other tasks wait for the chief.
    """

    start: float
    files: float
    meeting: float
    directory: float
    reports: float
    end: float

    @classmethod
    def of(cls, timeout_seconds: float, *, start: float) -> Times:
        """Divides the time.

        Args:
            timeout_seconds: the time for everything.
            start: the beginning, in seconds of time.monotonic().

        Example:
            >>> Times.of(100.0, start=0.0)
            Times(start=0.0, files=20.0, meeting=70.0, directory=80.0, reports=90.0, end=95.0)
        """
        files, meeting, directory, reports, end = (start + timeout_seconds * n / 100 for n in (20, 70, 80, 90, 95))
        return cls(start=start, files=files, meeting=meeting, directory=directory, reports=reports, end=end)
