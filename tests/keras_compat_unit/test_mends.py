from __future__ import annotations

import json

import pytest

from tfdist.keras_compat import keras_in_use, mends
from tfdist.keras_compat.registry import Mend, apply_mends
from tfdist.keras_compat.version import KerasInUse
from tfdist.strategies import STRATEGY_NAMES

# Notes down every function of the classes and modules that mends patch, then looks again.
PATCHES_NOTHING = """
import importlib, json, sys, types
import tensorflow as tf

tf.keras.Model
package = tf.keras.Model.__module__.split(".")[0]

def functions():
    found = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(package + ".") or module is None:
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                found[name, key] = value
            elif isinstance(value, type) and value.__module__.startswith(package):
                for attribute, member in list(vars(value).items()):
                    found[name, key, attribute] = member
    return found

def changed():
    now = functions()
    return [".".join(key) for key in before if now.get(key) is not before[key]]

before = functions()
import tfdist.keras_compat
for name in sys.argv[1:]:
    importlib.import_module("tfdist.keras_compat." + name)
print(json.dumps([len(before) > 1000, changed(), tfdist.keras_compat.applied_mends()]))
import tfdist
tfdist.create_strategy("one_device")
print(json.dumps([len(before) > 1000, changed(), tfdist.keras_compat.applied_mends()]))
tfdist.create_strategy("mirrored")
print(json.dumps([len(changed()), tfdist.keras_compat.applied_mends()]))
applied = tfdist.keras_compat.applied_mends()
before = functions()
tfdist.create_strategy("mirrored")
print(json.dumps([changed(), tfdist.keras_compat.applied_mends() == applied]))
"""


def mend(calls=None, **changes):
    fields = {
        "name": "some_defect",
        "issue": "keras-team/keras#1",
        "strategies": ("mirrored", "tpu"),
        "keras": ("keras3",),
        "versions": ((3, 14), (3, 15)),
        "defect_present": lambda: True,
        "apply": lambda: calls.append("some_defect"),
    }
    return Mend(**{**fields, **changes})


@pytest.fixture
def nothing_applied(monkeypatch):
    monkeypatch.setattr(mends, "_applied", [])


@pytest.mark.parametrize(
    ("kind", "keras", "version", "suits"),
    [
        ("mirrored", "keras3", "3.15.1", True),
        ("tpu", "keras3", "3.14.0", True),
        ("one_device", "keras3", "3.15.1", False),
        ("parameter_server", "keras3", "3.15.1", False),
        ("mirrored", "tf_keras", "3.15.1", False),
        ("mirrored", "keras2", "2.15.0", False),
        ("mirrored", "keras3", "3.13.9", False),
        ("mirrored", "keras3", "3.16.0", False),
        ("mirrored", "keras3", "3.9.0", False),
        ("mirrored", "keras3", "4.0.0", False),
    ],
)
def test_which_strategy_and_keras_a_mend_suits(kind, keras, version, suits):
    assert mend().suits(kind, KerasInUse(keras, version, "")) is suits


def test_a_mend_is_applied_once_and_noted_down(monkeypatch, nothing_applied):
    calls = []
    monkeypatch.setattr(mends, "all_mends", lambda: [mend(calls)])
    for _ in range(2):
        apply_mends("mirrored", KerasInUse("keras3", "3.15.1", ""))
    assert calls == ["some_defect"]
    assert mends.applied_mends() == ("some_defect",)


def test_a_keras_without_the_defect_is_left_alone(monkeypatch, nothing_applied):
    monkeypatch.setattr(mends, "all_mends", lambda: [mend(defect_present=lambda: False)])
    apply_mends("mirrored", KerasInUse("keras3", "3.15.1", ""))
    assert mends.applied_mends() == ()


def test_a_keras_that_it_was_not_written_for_is_not_even_looked_at(monkeypatch, nothing_applied):
    monkeypatch.setattr(mends, "all_mends", lambda: [mend(defect_present=None)])
    apply_mends("mirrored", KerasInUse("keras3", "3.16.0", ""))
    assert mends.applied_mends() == ()


def test_the_list_is_in_order():
    listed = MENDS
    assert len({one.name for one in listed}) == len(listed) > 0
    for one in listed:
        assert set(one.strategies) <= set(STRATEGY_NAMES) - {"auto", "one_device"}
        assert set(one.keras) <= {"keras3", "tf_keras", "keras2"}
        assert one.versions[0] <= one.versions[1]
        assert one.issue


def test_nothing_is_patched_until_a_strategy_needs_it(children):
    names = [one.name for one in MENDS if keras_in_use().name in one.keras]
    finished = children.run(PATCHES_NOTHING, *names)
    imported, one_device, mirrored, again = map(json.loads, finished.out.splitlines())
    assert imported == [True, [], []]
    assert one_device == [True, [], []]
    # That the comparison can see a patch at all: mirrored needs some on Keras 3.
    needed = [one.name for one in MENDS if one.suits("mirrored", keras_in_use())]
    assert mirrored[1] == needed
    assert (mirrored[0] > 0) is bool(needed)
    assert again == [[], True]
