"""Finds out what `tfdist env` prints. This file imports no TensorFlow."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist._tensorflow import MISSING, is_installed
from tfdist._version import __version__
from tfdist.cluster import ClusterConfig
from tfdist.doctor.checks import memory, shared_memory, threads
from tfdist.doctor.checks.versions import TENSORFLOWS
from tfdist.doctor.finding import size_text
from tfdist.env.variables import Recorded, shown

_PACKAGES = ("keras", "tf_keras", "tensorflow-addons", "numpy", "protobuf", "h5py", "ml_dtypes", "ray")
_LONGEST_ERROR = 2000

Section = dict[str, Any]


def gather(*, timeout_seconds: float) -> dict[str, Any]:
    """Returns everything, one entry for each section, and the warnings.

    Args:
        timeout_seconds: how long the process with TensorFlow may take.
    """
    flavours = installed(TENSORFLOWS)
    variables = Recorded(os.environ)
    cluster = _cluster(variables, timeout_seconds)
    tensorflow = _of_tensorflow(timeout_seconds) if is_installed() else {"error": MISSING}
    return {
        "versions": {
            "tfdist": __version__,
            "Python": f"{platform.python_version()} ({sys.executable})",
            "TensorFlow": flavours,
            **installed(_PACKAGES),
        },
        "machine": _machine(),
        "cluster": cluster,
        "tensorflow": tensorflow,
        "variables": shown(os.environ, read=variables.read),
        "warnings": warnings(flavours, tensorflow, cluster),
    }


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions of packages; a package that is not installed is left out.

    Example:
        >>> sorted(installed(("keras", "no-such-package")))
        ['keras']
    """
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def warnings(flavours: Mapping[str, str], tensorflow: Section, cluster: Section) -> list[str]:
    """Returns a sentence for each thing that is wrong with this installation.

    Args:
        flavours: the packages of TensorFlow that are installed.
        tensorflow: what the process with TensorFlow has found out.
        cluster: the cluster.

    Example:
        >>> warnings({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0"}, {}, {})[0]
        'expected one package of TensorFlow, received tensorflow 2.21.0 and tensorflow-cpu 2.21.0, of which one was ...'
    """
    found = []
    if len(flavours) > 1:
        names = " and ".join(f"{name} {version}" for name, version in flavours.items())
        found.append(
            f"expected one package of TensorFlow, received {names}, of which one was installed over the other; "
            "uninstall all of them, and install one."
        )
    errors = (tensorflow.get("error"), (tensorflow.get("keras") or {}).get("error"), cluster.get("error"))
    return found + [error for error in errors if error]


def _machine() -> Section:
    own = threads.gather()
    room, free = shared_memory.gather(), memory.gather()
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "CPUs": len(own.cpus),
        "CPU limit of the container": own.limit if own.limit is not None else "none",
        "memory available": size_text(free) if free is not None else "not known",
        "/dev/shm": f"{size_text(room.free)} free" if room else "cannot be written",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    vectors = [flag for flag in ("avx2", "avx512f", "amx_tile") if flag in flags]
    return f"{named[0] if named else platform.machine()}{' with ' if vectors else ''}{', '.join(vectors)}"


def _cluster(variables: Recorded, timeout_seconds: float) -> Section:
    try:
        config = ClusterConfig.detect(variables, timeout_seconds=timeout_seconds)
    except (ValueError, OSError) as error:
        return {"error": str(error)}
    return {
        "described by": config.source or "nothing: a single process",
        "task": config.task_name,
        "workers": config.num_workers,
        "tasks": {job: list(addresses) for job, addresses in config.jobs.items()},
    }


def _of_tensorflow(timeout_seconds: float) -> Section:
    """Returns what a process with TensorFlow prints, which may crash without ending this one."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tfdist.env.of_tensorflow"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"TensorFlow did not answer within {timeout_seconds:g} s."}
    last = ended.stdout.strip().rpartition("\n")[2]
    try:
        return dict(json.loads(last))
    except ValueError:
        end = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
        lines = ended.stderr.strip()[-_LONGEST_ERROR:]
        return {"error": f"TensorFlow cannot be imported ({end}): {lines.rpartition(chr(10))[2]}", "output": lines}
