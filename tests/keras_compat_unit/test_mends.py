from __future__ import annotations

import json
import types

import pytest

from tfdist.keras_compat import keras_in_use, registry
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.registry import MENDS, apply_mends
from tfdist.keras_compat.version import KerasInUse
from tfdist.strategies import STRATEGY_NAMES

# Records every function and class member of Keras. Then prints those that changed after an import of tfdist and after
# each create_strategy.
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
import tfdist.keras_compat.registry
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
    monkeypatch.setattr(registry, "_applied", [])


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
        ("mirrored", "keras3", "3.9.0", False),
        ("mirrored", "keras3", "3.7.0", False),
        # A release that was not tested counts as the nearest one that was, so that the check of the mend decides.
        ("mirrored", "keras3", "3.16.0", True),
        ("mirrored", "keras3", "4.0.0", True),
    ],
)
def test_a_mend_suits_the_strategies_and_versions_that_it_names(kind, keras, version, suits):
    assert mend().suits(kind, KerasInUse(keras, version, ""), object()) is suits


def test_a_mend_is_applied_once_and_listed(monkeypatch, nothing_applied):
    calls = []
    monkeypatch.setattr(registry, "MENDS", [mend(calls)])
    for _ in range(2):
        apply_mends("mirrored", KerasInUse("keras3", "3.15.1", ""), object())
    assert calls == ["some_defect"]
    assert registry.applied_mends() == ("some_defect",)


def test_a_keras_without_the_defect_is_not_patched(monkeypatch, nothing_applied):
    monkeypatch.setattr(registry, "MENDS", [mend(defect_present=lambda: False)])
    apply_mends("mirrored", KerasInUse("keras3", "3.15.1", ""), object())
    assert registry.applied_mends() == ()


def test_a_version_of_keras_that_a_mend_does_not_name_is_not_checked(monkeypatch, nothing_applied):
    monkeypatch.setattr(registry, "MENDS", [mend(defect_present=None)])
    apply_mends("mirrored", KerasInUse("keras3", "3.13.0", ""), object())
    assert registry.applied_mends() == ()


@pytest.mark.parametrize(("strategy", "needed"), [("compresses", True), ("does not", False), (None, False)])
def test_a_mend_can_be_limited_to_strategies_that_need_it(strategy, needed):
    one = mend(needed_by=lambda strategy: strategy == "compresses")
    assert one.suits("mirrored", KerasInUse("keras3", "3.15.1", ""), strategy) is needed


def test_without_a_strategy_a_mend_is_needed_only_if_it_accepts_none():
    keras3 = KerasInUse("keras3", "3.15.1", "")
    assert not mend().suits("mirrored", keras3, None)
    assert mend(needed_by=lambda strategy: strategy is None).suits("mirrored", keras3, None)


def test_every_mend_names_its_strategies_versions_issue_and_defect():
    assert len({one.name for one in MENDS}) == len(MENDS) > 0
    for one in MENDS:
        assert set(one.strategies) <= set(STRATEGY_NAMES) - {"auto"}
        assert set(one.keras) <= {"keras3", "tf_keras", "keras2"}
        assert one.versions[0] <= one.versions[1]
        assert one.issue
        assert one.defect


def needed_by_plain(kind):
    """Returns the names of the mends that a strategy without all-reduce options needs before or after it is made."""
    plain = types.SimpleNamespace()
    return [one.name for one in MENDS if any(one.suits(kind, keras_in_use(), made) for made in (None, plain))]


def test_nothing_is_patched_until_a_strategy_needs_it(children):
    finished = children.run(PATCHES_NOTHING)
    imported, one_device, mirrored, again = map(json.loads, finished.out.splitlines())
    assert imported == [True, [], []]
    # None of these mends changes the numbers of one device without a strategy.
    assert one_device[2] == needed_by_plain("one_device")
    assert set(one_device[2]) <= {
        "wrapping_is_not_saved",
        "initial_epoch_outlives_fit",
        "endless_data_without_steps",
        "model_without_call",
        "dataset_functions_not_accepted",
        "loss_called_on_one_replica",
        "symbolic_build_averages_data",
    }
    # The mirrored strategy shows that the comparison detects patches, since it needs some on Keras 3.
    assert set(mirrored[1]) == set(needed_by_plain("mirrored"))
    assert (mirrored[0] > 0) is bool(mirrored[1])
    assert again == [[], True]
