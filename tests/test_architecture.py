"""Import rules of the sub-packages of tfdist, which are called rooms, and the largest length of a file."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tfdist").rglob("*.py"))
}

# The modules directly in tfdist that every room may import, and that import no room.
SMALL = {
    "_cli",
    "_installed",
    "_log",
    "_loss_rules",
    "_paths",
    "_sending",
    "_suggestions",
    "_version",
    "_strategy_names",
    "_optimizer_names",
}
SMALL |= {"_tensorflow", "_needs_tensorflow"}
# The rooms that each room may import.
ROOMS: dict[str, set[str]] = {
    "cluster": set(),
    "launch": {"cluster"},
    "doctor": {"cluster"},
    "render": {"cluster", "launch"},
    "workers": set(),
    "saving": {"workers"},
    "checkpoint": {"cluster", "saving", "keras_compat", "watch", "workers"},
    "watch": {"cluster", "workers", "allreduce", "keras_compat"},
    "allreduce": set(),
    "keras_compat": {"allreduce", "saving", "workers"},
    "strategies": {"cluster", "allreduce", "averaging", "keras_compat"},
    "adoption": {"cluster", "allreduce", "keras_compat", "strategies"},
    "input": {"workers"},
    "layers": {"keras_compat"},
    "collectives": {"cluster", "keras_compat", "workers"},
    "notebook": {"cluster", "launch"},
    "ray": {"cluster", "workers", "saving", "keras_compat"},
    "verify": {"allreduce", "checkpoint", "keras_compat", "launch", "strategies", "workers"},
    "optimizers": {"allreduce", "keras_compat"},
    "averaging": {"allreduce", "keras_compat"},
    "flags": {"cluster", "strategies", "allreduce", "averaging", "optimizers"},
    "train": {
        "cluster",
        "workers",
        "saving",
        "checkpoint",
        "watch",
        "strategies",
        "input",
        "layers",
        "optimizers",
        "allreduce",
        "keras_compat",
        "flags",
    },
    "bench": {"cluster", "workers", "strategies", "input", "optimizers", "allreduce", "keras_compat", "launch"},
    "env": {"cluster", "doctor", "keras_compat"},
    "test": {
        "cluster",
        "launch",
        "verify",
        "workers",
        "saving",
        "checkpoint",
        "strategies",
        "optimizers",
        "allreduce",
        "keras_compat",
    },
    "completion": {"launch", "render", "doctor", "env", "test", "verify", "flags", "bench"},
    "__main__": set(),
}


def imports_of(tree: ast.AST) -> set[str]:
    """Returns the modules of tfdist that a module imports, also in functions, but not under TYPE_CHECKING."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in FILES}
        elif isinstance(node, ast.ImportFrom) and node.module in FILES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in FILES else node.module)
        else:
            found |= imports_of(node)
    return found


GRAPH = {name: imports_of(ast.parse(path.read_text())) for name, path in FILES.items()}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_there_are_no_circular_imports():
    try:
        graphlib.TopologicalSorter(GRAPH).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"expected no circular import, received {' -> '.join(reversed(error.args[1]))}")


def test_a_circular_import_would_be_found():
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({**GRAPH, "tfdist._log": {"tfdist.strategies.create"}}).prepare()


@pytest.mark.parametrize("name", sorted({room(module) for module in FILES} - SMALL - {""}))
def test_a_room_imports_only_the_rooms_that_it_may_import(name):
    imported = {room(target) for module, targets in GRAPH.items() if room(module) == name for target in targets}
    assert imported - SMALL - {name, ""} <= ROOMS[name]


def test_small_modules_import_no_room():
    for module in SMALL:
        assert {room(target) for target in GRAPH[f"tfdist.{module}"]} <= SMALL


def test_there_is_a_rule_for_every_room():
    assert set(ROOMS) == {room(module) for module in FILES} - SMALL - {""}


def test_only_strategies_and_env_import_the_registry_of_mends_and_mend_imports_no_mend():
    package = "tfdist.keras_compat"
    above = {module for module, targets in GRAPH.items() if f"{package}.registry" in targets}
    assert {room(module) for module in above if module != package} == {"strategies", "env"}
    assert GRAPH[f"{package}.mend"] == {f"{package}.tested", f"{package}.version"}
    assert GRAPH[f"{package}.tested"] == {"tfdist._log", f"{package}.version"}
    assert GRAPH[f"{package}.version"] == set()


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_has_at_most_300_lines(name):
    lines = len(FILES[name].read_text().splitlines())
    assert lines <= 300


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_of_tests_has_at_most_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400
