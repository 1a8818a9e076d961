"""The wheel has every file of the package and no other one; the sdist has what the wheel is built from."""

from __future__ import annotations

import email
import tarfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

from tests.packaging.built import tracked
from tfdist._version import __version__

INFO = f"tfdist-{__version__}.dist-info"


def names_in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as wheel:
        return set(wheel.namelist())


def test_the_wheel_has_the_files_of_the_package_and_its_metadata(packages: dict[str, Path]) -> None:
    info = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
    assert "tfdist/py.typed" in tracked("tfdist")
    assert names_in_wheel(packages["wheel"]) == {*tracked("tfdist"), *(f"{INFO}/{name}" for name in info)}


def test_the_wheel_is_for_every_machine_and_python_of_version_3(packages: dict[str, Path]) -> None:
    assert packages["wheel"].name == f"tfdist-{__version__}-py3-none-any.whl"
    assert packages["wheel"].stat().st_size < 1 << 20


def test_the_wheel_depends_on_no_tensorflow_without_an_extra(packages: dict[str, Path]) -> None:
    with zipfile.ZipFile(packages["wheel"]) as wheel:
        metadata = email.message_from_bytes(wheel.read(f"{INFO}/METADATA"))
    needed = list(map(Requirement, metadata.get_all("Requires-Dist") or []))
    always = {one.name for one in needed if one.marker is None or "extra" not in str(one.marker)}
    assert "keras" in always
    assert not [name for name in always if name.startswith(("tensorflow", "tf_keras", "tf-keras", "nvidia"))]
    assert {"cpu", "gpu", "tpu", "tensorflow"} <= set(metadata.get_all("Provides-Extra") or [])
    cpu = [one for one in needed if one.marker and one.marker.evaluate({"extra": "cpu"}) and one.name not in always]
    assert [one for one in cpu if one.name in ("tensorflow-cpu", "tensorflow")] == cpu != []


def test_the_sdist_has_what_the_wheel_is_built_from_and_no_tests(packages: dict[str, Path]) -> None:
    with tarfile.open(packages["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames() if sdist.getmember(name).isfile()}
    made = {"PKG-INFO", "setup.cfg", *(name for name in names if name.startswith("tfdist.egg-info/"))}
    assert names - made == {*tracked("tfdist"), "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "setup.py"}
