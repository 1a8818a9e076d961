"""Versions of Python, TensorFlow, Keras and tfdist: installed, and the same on all tasks."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping

from tfdist._tensorflow import asks_for_tf_keras
from tfdist._version import __version__
from tfdist.doctor.finding import Finding, usual

CHECK = "versions"

# The packages that install TensorFlow, of which one is enough.
TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-tpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "tf-nightly",
    "tf-nightly-cpu",
)
_INSTALL = "install the same packages on all tasks, for example with one container image or one `pip freeze` file"


def gather() -> dict[str, str]:
    """Returns the versions that are installed; a package that is not installed is left out."""
    legacy = asks_for_tf_keras(os.environ)
    found = {
        "Python": platform.python_version(),
        "TensorFlow": _installed(*TENSORFLOWS),
        "Keras": _installed("tf_keras") if legacy else _installed("keras"),
        "Keras backend": os.environ.get("KERAS_BACKEND", "tensorflow"),
        "TF_USE_LEGACY_KERAS": "1" if legacy else "not set",
        "tfdist": __version__,
    }
    return {name: version for name, version in found.items() if version}


def _installed(*names: str) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def decide(versions: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Returns one finding for each task.

    Another patch version of Python is a warning, every other difference a failure, as at the start of a training.

    Args:
        versions: what each task has gathered, the chief first.

    Example:
        >>> same = {"Python": "3.11.9", "TensorFlow": "2.21.0", "Keras": "3.15.0", "tfdist": "0.1"}
        >>> [finding.text for finding in decide({"worker 0": same})]
        ['Python 3.11.9, TensorFlow 2.21.0, Keras 3.15.0, tfdist 0.1']
        >>> for finding in decide({"worker 0": same, "worker 1": {**same, "Keras": "3.12.0"}})[1:]:
        ...     print(finding.verdict, finding.task, finding.text, sep=" | ")
        fail | worker 1 | has Keras 3.12.0, but worker 0 has Keras 3.15.0
        >>> [finding.verdict for finding in decide({"worker 0": same, "worker 1": {**same, "Python": "3.11.2"}})]
        ['pass', 'warn']
        >>> [finding.verdict for finding in decide({"worker 0": same, "worker 1": {**same, "Python": "3.12.9"}})]
        ['pass', 'fail']
    """
    names = list(dict.fromkeys(name for own in versions.values() for name in own))
    references = {name: usual({task: own.get(name, "") for task, own in versions.items()}) for name in names}
    return [_of_task(task, own, references) for task, own in versions.items()]


def _of_task(task: str, own: Mapping[str, str], references: Mapping[str, tuple[str, str]]) -> Finding:
    missing = [name for name in ("TensorFlow", "Keras") if name not in own]
    if missing:
        return Finding(
            check=CHECK,
            task=task,
            verdict="fail",
            text=f"{' and '.join(missing)} cannot be found by {own.get('Python', 'this')} Python",
            action="install both into the Python that runs the training, for example with `pip install '.[cpu]'` in a "
            "checkout of tfdist",
        )
    if own.get("Keras backend", "tensorflow") != "tensorflow":
        return Finding(
            check=CHECK,
            task=task,
            verdict="fail",
            text=f"KERAS_BACKEND is {own['Keras backend']!r}",
            action="unset it: tf.distribute needs the backend tensorflow",
        )
    differing = {name: one for name, one in references.items() if own.get(name, "") != one[1]}
    if not differing:
        shown = [name for name in ("Python", "TensorFlow", "Keras", "tfdist") if name in own]
        if own.get("TF_USE_LEGACY_KERAS") == "1":
            return Finding(check=CHECK, task=task, verdict="pass", text=_shown(own, shown).replace("Keras", "tf_keras"))
        return Finding(check=CHECK, task=task, verdict="pass", text=_shown(own, shown))
    only_a_patch = set(differing) == {"Python"} and _minor(own["Python"]) == _minor(differing["Python"][1])
    details = [
        f"has {_named(name, own.get(name, ''))}, but {other} has {_named(name, version)}"
        for name, (other, version) in differing.items()
    ]
    return Finding(
        check=CHECK,
        task=task,
        verdict="warn" if only_a_patch else "fail",
        text=" and ".join(details),
        action=_INSTALL,
    )


def _shown(own: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} {own[name]}" for name in names)


def _named(name: str, version: str) -> str:
    return f"{name} {version}" if version else f"no {name}"


def _minor(version: str) -> str:
    return version.rpartition(".")[0]
