"""The rooms of tfdist: which imports which, no circles, no file too long to read."""

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

# Data flows down: a room may import the rooms that are named here, and the small modules that import no room.
SMALL = {"_cli", "_log", "_version", "_strategy_names", "_optimizer_names"}
ROOMS: dict[str, set[str]] = {
    "cluster": set(),
    "launch": {"cluster"},
    "workers": set(),
    "saving": {"workers"},
    "allreduce": set(),
    "keras_compat": {"allreduce", "saving", "workers"},
    "strategies": {"cluster", "allreduce", "keras_compat"},
    "input": {"workers"},
    "layers": {"keras_compat"},
    "optimizers": {"allreduce", "keras_compat"},
    "flags": {"cluster", "strategies", "allreduce", "optimizers"},
    "train": {
        "cluster",
        "workers",
        "saving",
        "strategies",
        "input",
        "layers",
        "optimizers",
        "allreduce",
        "keras_compat",
        "flags",
    },
    "bench": {"cluster", "workers", "strategies", "input", "optimizers", "allreduce", "keras_compat", "launch"},
    "__main__": set(),
}


def imports_of(tree: ast.AST) -> set[str]:
    """The modules of tfdist that a module imports, also within functions; not those for type checkers alone."""
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


def test_no_module_imports_itself_by_a_detour():
    try:
        graphlib.TopologicalSorter(GRAPH).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import circle: {' -> '.join(reversed(error.args[1]))}")


def test_a_circle_would_be_found():
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({**GRAPH, "tfdist._log": {"tfdist.strategies.create"}}).prepare()


@pytest.mark.parametrize("name", sorted({room(module) for module in FILES} - SMALL - {""}))
def test_a_room_imports_only_the_rooms_below_it(name):
    imported = {room(target) for module, targets in GRAPH.items() if room(module) == name for target in targets}
    assert imported - SMALL - {name, ""} <= ROOMS[name]


def test_small_modules_import_no_room():
    for module in SMALL:
        assert {room(target) for target in GRAPH[f"tfdist.{module}"]} <= SMALL


def test_every_contract_is_of_a_room_that_there_is():
    assert set(ROOMS) == {room(module) for module in FILES} - SMALL - {""}


def test_the_registry_of_mends_is_alone_on_top_and_mend_below():
    package = "tfdist.keras_compat"
    above = {module for module, targets in GRAPH.items() if f"{package}.registry" in targets}
    assert {room(module) for module in above if module != package} == {"strategies"}
    assert GRAPH[f"{package}.mend"] == {f"{package}.version"}
    assert GRAPH[f"{package}.version"] == set()


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_can_be_read_at_a_sitting(name):
    lines = len(FILES[name].read_text().splitlines())
    assert lines <= 300
