"""A variable partitioner is refused with Keras 3 and accepted with Keras 2."""

from __future__ import annotations

import pytest

from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.parameter_server.variable_partitioner import check_variable_partitioner


def test_none_is_accepted():
    check_variable_partitioner(None)


def test_a_partitioner_is_refused_with_keras_3_and_accepted_with_keras_2():
    if not keras_in_use().is_keras3:
        check_variable_partitioner(lambda **_: [1])
        return
    with pytest.raises(ValueError, match=r"expected no variable_partitioner with Keras 3, .*received a partitioner;"):
        check_variable_partitioner(lambda **_: [1])
