"""The versions in docs/versions.md and on other pages are those of pyproject.toml, and its legs are those of CI."""

from __future__ import annotations

import itertools
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.matrix.pairs import PAIRS
from tests.matrix.rows import ROWS
from tests.processes import ROOT
from tfdist.keras_compat import tested

TEXT = (ROOT / "docs" / "versions.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"none": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def rows(heading: str) -> list[list[str]]:
    """Returns the rows of the table below a heading, without the line of its titles."""
    section = TEXT.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def minor_versions(allowed: SpecifierSet, majors: tuple[int, ...]) -> set[str]:
    """Returns the versions such as "2.15" of which at least one patch version is allowed."""
    tried = [
        (f"{major}.{minor}", f"{major}.{minor}.{patch}") for major in majors for minor in range(40) for patch in (0, 1)
    ]
    return {name for name, version in tried if version in allowed}


def requirement(name: str) -> SpecifierSet:
    needed = map(Requirement, [*PROJECT["dependencies"], *EXTRAS["tensorflow"]])
    return next(one.specifier for one in needed if one.name == name)


def test_the_legs_have_the_versions_that_can_be_installed() -> None:
    legs = rows("Which versions of Python")
    python, tensorflow, keras = ({word for leg in legs for word in leg[i].split(", ")} for i in (1, 2, 3))
    assert python == minor_versions(SpecifierSet(PROJECT["requires-python"]), (3,))
    assert tensorflow == minor_versions(requirement("tensorflow"), (2,))
    # Keras 2.15 is the last version of Keras 2 in the package of this name.
    of_tf_keras = {name.removeprefix("tf_keras ") for name in keras if name.startswith("tf_keras ")}
    of_keras = {name for name in keras if not name.startswith("tf_keras ")}
    assert of_keras - {"2.15"} == minor_versions(requirement("keras"), (3,))
    assert {"2.15"} == of_keras & minor_versions(requirement("keras"), (2,))
    (tf_keras,) = map(Requirement, EXTRAS["tf-keras"])
    assert of_tf_keras == minor_versions(tf_keras.specifier, (2,))


def between(first: tuple[int, int], last: tuple[int, int]) -> set[str]:
    """Returns the minor versions from the first to the last, such as "3.8"."""
    return {f"{first[0]}.{minor}" for minor in range(first[1], last[1] + 1)}


def test_the_bounds_are_the_releases_that_tfdist_knows_and_that_the_matrix_tests() -> None:
    tensorflow = minor_versions(requirement("tensorflow"), (2,))
    # The package keras has no version of Keras 2 after 2.15.
    keras = minor_versions(requirement("keras"), (3,)) | {"2.15"}
    assert keras == between(*tested.KERAS["keras3"]) | between(*tested.KERAS["keras2"])
    assert tensorflow == set().union(*(between(*one) for one in tested.TENSORFLOW))
    # Keras 2.15 and TensorFlow 2.15 are the leg of Addons.
    assert {pair.tensorflow for pair in PAIRS} == tensorflow - {"2.15"} == between(*tested.KERAS["tf_keras"])
    assert {pair.keras for pair in PAIRS} - {"tf_keras"} == keras - {"2.15"}
    # TensorFlow 2.20 needs Keras 3.10 or later, and TensorFlow 2.21 needs Keras 3.12 or later.
    every = set(itertools.product(tensorflow - {"2.15"}, keras - {"2.15"}))
    missing = every - {(pair.tensorflow, pair.keras) for pair in PAIRS}
    assert missing == {("2.20", k) for k in ("3.8", "3.9")} | {("2.21", k) for k in ("3.8", "3.9", "3.10", "3.11")}


def test_the_table_has_every_pair_and_nothing_wrong() -> None:
    lines = TEXT.split("<!-- matrix: begin -->")[1].split("<!-- matrix: end -->")[0].strip().splitlines()
    heading, _, *others = [line for line in lines if line.startswith("|")]
    assert [cell.strip() for cell in heading.strip("|").split("|")] == ["TensorFlow", "Keras", *ROWS, "canaries"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in others]
    minors = [(tensorflow.rpartition(".")[0], keras.rpartition(".")[0]) for tensorflow, keras, *_ in cells]
    known = [(p.tensorflow, f"tf_keras {p.tensorflow}" if p.is_tf_keras else p.keras) for p in PAIRS]
    assert minors == known
    for _, _, *words, canaries in cells:
        assert not re.search("wrong|hang|fails", " ".join(words)), words
        assert re.fullmatch(r"\d+ pass", canaries)


def test_the_packages_of_tensorflow_have_the_same_versions() -> None:
    for extra in ("cpu", "gpu"):
        assert {one.specifier for one in map(Requirement, EXTRAS[extra])} == {requirement("tensorflow")}
    # tensorflow-tpu has no later version.
    (tpu,) = map(Requirement, EXTRAS["tpu"])
    assert max(minor_versions(tpu.specifier, (2,))) == "2.20"


def test_no_extra_and_no_dependency_brings_a_tensorflow_but_those_that_are_named_after_it() -> None:
    for extra in EXTRAS.keys() - {"cpu", "gpu", "tensorflow", "tpu"}:
        assert not [one for one in EXTRAS[extra] if re.match(r"tensorflow(-cpu|-tpu)?\b(?!-)", one)], extra


def test_every_machine_has_one_package_of_the_extra_cpu() -> None:
    for system, machine in itertools.product(("linux", "darwin"), ("x86_64", "aarch64", "arm64")):
        where = {"sys_platform": system, "platform_machine": machine}
        (found,) = [one for one in map(Requirement, EXTRAS["cpu"]) if one.marker and one.marker.evaluate(where)]
        assert found.name == ("tensorflow-cpu" if (system, machine) == ("linux", "x86_64") else "tensorflow")


def test_the_tf_keras_to_type_is_that_of_the_extra() -> None:
    (bounds,) = map(Requirement, EXTRAS["tf-keras"])
    for path in ("docs/versions.md", "docs/keras.md", "CONTRIBUTING.md", ".ci/run"):
        (typed,) = set(re.findall(r"pip install (?:--quiet )?--no-deps '(tf_keras[^']+)'", (ROOT / path).read_text()))
        (specifier,) = Requirement(typed).specifier
        assert specifier.operator == "==" and specifier.version.removesuffix(".*") + ".0" in bounds.specifier, path


def test_the_extras_and_their_packages_are_listed() -> None:
    listed = {row[0].strip("`"): row[2] for row in rows("Which extras are there?")}
    assert listed.keys() == EXTRAS.keys()
    for extra, text in listed.items():
        found = [Requirement(one) for one in EXTRAS[extra]]
        names = {name for one in found for name in (one.extras if one.name == "tfdist" else {one.name})}
        assert set(re.findall(r"`([^`]+)`", text)) == names, extra


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_package_has_a_lower_and_an_upper_bound(extra: str) -> None:
    for one in map(Requirement, EXTRAS[extra]):
        operators = {specifier.operator for specifier in one.specifier}
        assert one.name == "tfdist" or {">=", "<"} <= operators or "==" in operators, one


def test_the_legs_of_ci_are_listed() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    legs = re.search(r'^legs="(.*)"$', script, re.M)
    assert legs is not None
    assert [row[0].split("`")[1] for row in rows("What does CI run?")] == legs[1].split()
    others = re.search(r"for version in ([\d. ]+);", script)
    assert others is not None
    assert f"`python` ({', '.join(others[1].split())})" in TEXT
