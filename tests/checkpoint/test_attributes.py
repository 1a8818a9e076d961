"""The attributes of callbacks that a snapshot keeps, after a way through JSON as in a part."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tfdist.keras_compat.resume.attributes import digests, plain_state, set_plain_state


class Best(NamedTuple):
    step: int
    loss: float


class Holder:
    """A callback, as far as its attributes matter."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def kept(value: Any) -> Any:
    arrays: dict[str, np.ndarray] = {}
    state = json.loads(json.dumps(plain_state(Holder(value=value), arrays, "holder")))
    restored = Holder(value="the value of a new program")
    set_plain_state(restored, state, arrays)
    return restored.value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        0.1,
        "text",
        [1, [2.5, "a"]],
        (1, (2,)),
        {"a": 1, 2: (3, [4])},
        {1, 2, 3},
        frozenset({"a"}),
        collections.deque([1, 2], maxlen=5),
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.Counter("aab"),
        collections.defaultdict(list, {"a": [1]}),
        collections.defaultdict(None, {1: 2}),
        Best(step=3, loss=0.5),
        [Best(step=3, loss=0.5), {"deque": 1, "array": 2, "function": 3}],
        len,
        np.minimum,
    ],
    ids=repr,
)
def test_a_value_comes_back_with_its_class(value: Any) -> None:
    found = kept(value)
    assert found == value
    assert type(found) is type(value)
    assert getattr(found, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(found, "default_factory", None) is getattr(value, "default_factory", None)


@pytest.mark.parametrize("value", [np.arange(6.0).reshape(2, 3), np.float32(0.1), np.array([], "int8")], ids=repr)
def test_arrays_and_their_numbers_come_back_bit_by_bit(value: Any) -> None:
    found = kept({"weights": [value]})["weights"][0]
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()


class Own(dict):
    pass


# The ids are given: those of str contain addresses, and processes that share the tests must collect the same ids.
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(object(), id="object"),
        pytest.param(Own(a=1), id="dict of a class of one's own"),
        pytest.param({(1, 2): 3}, id="dict with tuples as keys"),
        pytest.param(lambda: 1, id="lambda"),
        pytest.param([object()], id="list of objects"),
        pytest.param(np.array([None]), id="array of objects"),
    ],
)
def test_other_values_are_those_of_the_new_program(value: Any) -> None:
    assert kept(value) == "the value of a new program"


def test_attributes_that_have_not_changed_are_those_of_the_new_program() -> None:
    arrays: dict[str, np.ndarray] = {}
    rows = {"rows": np.ones([3]), "rows_seen": [np.zeros([2])], "best": np.float32(1.0)}
    holder = Holder(patience=3, losses=collections.deque([1.0]), **rows)
    since = digests(holder, "holder")
    assert plain_state(holder, arrays, "holder", since=since) == {}
    holder.losses.append(2.0)
    holder.rows_seen[0][1] = 5.0
    assert list(plain_state(holder, arrays, "holder", since=since)) == ["losses", "rows_seen"]
    assert list(arrays) == ["holder/rows_seen/0"]


@pytest.mark.parametrize("function", [["os", "system"], ["builtins", "list"], ["os", "no_such_name"]])
def test_a_snapshot_calls_no_function_of_its_writers_choice(function: list[str], tmp_path: Path) -> None:
    state = {"value": {"named": function, "values": [f"touch {tmp_path}/called"]}}
    with pytest.raises(ValueError, match="expected the class of a named tuple in the snapshot, received"):
        set_plain_state(Holder(), state, {})
    assert list(tmp_path.iterdir()) == []
