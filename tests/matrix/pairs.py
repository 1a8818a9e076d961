"""The pairs of TensorFlow and Keras that can be installed beside tfdist, with what uv installs for each."""

from __future__ import annotations

import dataclasses
import tomllib

from tests.processes import ROOT

TENSORFLOWS = ("2.18", "2.19", "2.20", "2.21")
KERASES = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
# The oldest Keras that a TensorFlow can be installed with, as its package says.
_OLDEST_KERAS = {"2.20": "3.10", "2.21": "3.12"}
# What the core and the canaries import, beside TensorFlow and Keras.
_OF_TESTS = ("pytest", "hypothesis", "pytest-xdist")
# TensorFlow 2.21 no longer depends on it, and a canary writes logs for it.
_OF_TRAINING = ("tensorboard",)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A minor version of TensorFlow, and one of Keras.

    Attributes:
        tensorflow: such as "2.20".
        keras: such as "3.12", or "tf_keras" for tf_keras of the same minor version as TensorFlow.
    """

    tensorflow: str
    keras: str

    @property
    def name(self) -> str:
        """Such as "2.20-3.12" or "2.20-tf_keras"."""
        return f"{self.tensorflow}-{self.keras}"

    @property
    def is_tf_keras(self) -> bool:
        """Whether the Keras in use is tf_keras."""
        return self.keras == "tf_keras"

    def requirements(self) -> list[str]:
        """Returns the packages that are installed with their dependencies."""
        keras = [] if self.is_tf_keras else [f"keras=={self.keras}.*"]
        return [f"tensorflow-cpu=={self.tensorflow}.*", *keras, *others()]

    def alone(self) -> list[str]:
        """Returns the packages that are installed without their dependencies: tf_keras asks for another TensorFlow."""
        return [f"tf_keras=={self.tensorflow}.*"] if self.is_tf_keras else []


PAIRS = (
    *(
        Pair(tensorflow, keras)
        for tensorflow in TENSORFLOWS
        for keras in KERASES[KERASES.index(_OLDEST_KERAS.get(tensorflow, KERASES[0])) :]
    ),
    *(Pair(tensorflow, "tf_keras") for tensorflow in TENSORFLOWS),
)


def others() -> list[str]:
    """Returns what tfdist and its tests need beside TensorFlow and Keras, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [line for line in project["dependencies"] if name_of(line) not in ("tensorflow", "keras")]
    extras = project["optional-dependencies"]
    return own + [
        line
        for extra, names in (("test", _OF_TESTS), ("train", _OF_TRAINING))
        for line in extras[extra]
        if name_of(line) in names
    ]


def name_of(requirement: str) -> str:
    """Returns the name of the package in a line such as "absl-py>=1.4,<3".

    >>> name_of("absl-py>=1.4,<3"), name_of("tfdist[train]")
    ('absl-py', 'tfdist')
    """
    return requirement[: next((i for i, c in enumerate(requirement) if c in "<>=!~[ ;"), len(requirement))]


def named(names: list[str]) -> list[Pair]:
    """Returns the pairs with these names; all pairs without names.

    Raises:
        ValueError: for a name that no pair has.
    """
    by_name = {pair.name: pair for pair in PAIRS}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ValueError(f"expected pairs out of {', '.join(by_name)}, received {', '.join(unknown)}.")
    return [by_name[name] for name in names] or list(PAIRS)
