"""Memory: enough for TensorFlow in every task of a host, within the limit of a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster import cgroup
from tfdist.doctor.finding import Finding, grade, size_text

CHECK = "memory"
# TensorFlow and Keras themselves take about half a gibibyte in each process.
FAIL_BYTES = 512 << 20
WARN_BYTES = 2 << 30


def gather(root: Path = Path("/")) -> int | None:
    """Returns how many bytes may still be allocated on this machine or in this container; None if that is not known.

    Args:
        root: the folder that contains proc and sys.
    """
    try:
        lines = (root / "proc" / "meminfo").read_text().splitlines()
    except OSError:
        return None
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    limit = cgroup.free_memory(root)
    return min([*available, *([] if limit is None else [limit])], default=None)


def decide(tasks: Sequence[str], available: Mapping[str, int | None]) -> Finding | None:
    """Returns the finding for the tasks of one host; None if nothing is known.

    Args:
        tasks: the tasks of the host.
        available: the bytes that each task found to be available.

    Example:
        >>> decide(["worker 0", "worker 1"], {"worker 0": 8 << 30, "worker 1": 8 << 30}).text
        '8.0 GiB are available'
        >>> finding = decide(["worker 0", "worker 1"], {"worker 0": 3 << 30, "worker 1": 3 << 30})
        >>> finding.verdict, finding.text
        ('warn', '3.0 GiB are available for 2 tasks on this host')
        >>> decide(["worker 0"], {"worker 0": 100 << 20}).verdict
        'fail'
    """
    found = [value for task in tasks if (value := available.get(task)) is not None]
    if not found:
        return None
    least = min(found)
    verdict = grade(least, warn=WARN_BYTES * len(tasks), fail=FAIL_BYTES * len(tasks))
    text = f"{size_text(least)} are available"
    if verdict == "pass":
        return Finding(check=CHECK, task=", ".join(tasks), verdict=verdict, text=text)
    return Finding(
        check=CHECK,
        task=", ".join(tasks),
        verdict=verdict,
        text=text + (f" for {len(tasks)} tasks on this host" if len(tasks) > 1 else ""),
        action=f"end other programs or raise the container's limit, to {size_text(WARN_BYTES)} or more for each task",
    )
