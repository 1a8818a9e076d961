"""Each public name has a docstring with an example, and no public name hides a builtin of Python."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import types

import pytest

import tfdist

# Sub-packages whose extra is installed.
ROOMS = (*tfdist._ROOMS, *(room for room in tfdist._ROOMS_OF_EXTRAS if importlib.util.find_spec(room)))


def public_names() -> list[tuple[str, str]]:
    names = [("tfdist", name) for name in tfdist.__all__]
    for room in ROOMS:
        module = importlib.import_module(f"tfdist.{room}")
        names += [(f"tfdist.{room}", name) for name in getattr(module, "__all__", ())]
    return names


@pytest.mark.parametrize(("module", "name"), public_names())
def test_a_public_name_is_documented_with_an_example(module, name):
    value = getattr(importlib.import_module(module), name)
    if isinstance(value, types.ModuleType):
        assert value.__doc__
    elif callable(value):
        assert inspect.getdoc(value), name
        assert ">>> " in inspect.getdoc(value), f"{module}.{name} has no example"
    else:
        # A constant has no docstring of its own. It is documented beside its definition.
        assert isinstance(value, (str, tuple, dict, int, float))


@pytest.mark.parametrize("module", ["tfdist", *(f"tfdist.{room}" for room in ROOMS)])
def test_a_star_import_shadows_no_builtin(module):
    names: dict[str, object] = {}
    exec(f"from {module} import *", names)
    assert not (set(names) - {"__builtins__"}) & set(dir(builtins))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("keras_compat", "keras"),
        ("keras_compat", "prepare_keras"),
        ("keras_compat", "check_variable_partitioner"),
        ("keras_compat", "require_distributed_optimizer"),
        ("cluster", "probe_peers"),
        ("cluster", "wait_for_peers"),
        ("cluster", "wait_until_gone"),
        ("cluster", "split_address"),
    ],
)
def test_internals_are_not_public(module, name):
    assert name not in importlib.import_module(f"tfdist.{module}").__all__


@pytest.mark.parametrize(("name", "home"), [("save_model", "saving"), ("is_chief", "workers")])
def test_names_that_moved_can_still_be_imported_from_their_old_module_with_a_warning(name, home):
    with pytest.warns(DeprecationWarning, match=f"use tfdist.{home}.{name}"):
        moved = getattr(tfdist.keras_compat, name)
    assert moved is getattr(importlib.import_module(f"tfdist.{home}"), name)
