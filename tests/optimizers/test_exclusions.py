"""Variables that are excluded from weight decay and from the trust ratio."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.cases import ALL, BOTH, compiled, rows, stepped, variables
from tfdist.optimizers import LAMB


@ALL
def test_a_string_instead_of_a_list_is_refused(kind):
    message = "expected exclude_from_weight_decay to be a list of regular expressions, received 'bias'; write ['bias']."
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kind(0.1, exclude_from_weight_decay="bias")


@BOTH
def test_a_string_for_adaptation_is_refused(kind):
    with pytest.raises(ValueError, match=r"^expected exclude_from_adaptation to be a list of regular expressions"):
        kind(0.1, exclude_from_adaptation="bias")


def test_an_invalid_expression_is_refused():
    with pytest.raises(ValueError, match=r"^expected exclude_from_weight_decay to hold regular expressions, receiv"):
        LAMB(0.1, exclude_from_weight_decay=["("])


@ALL
def test_an_empty_expression_is_refused(kind):
    message = "expected exclude_from_weight_decay to hold regular expressions, received '', which matches every"
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kind(0.1, exclude_from_weight_decay=["bias", ""])


@ALL
@pytest.mark.parametrize("patterns", [5, [None]])
def test_anything_but_a_list_of_strings_is_refused(kind, patterns):
    message = f"expected exclude_from_weight_decay to be a list of regular expressions, received {patterns}."
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        kind(0.1, exclude_from_weight_decay=patterns)


@ALL
def test_an_iterator_of_expressions_is_read_once(kind):
    optimizer = kind(0.1, weight_decay=0.1, exclude_from_weight_decay=map(re.escape, ["bias"]))
    assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]


@ALL
def test_the_method_of_keras_excludes_too(kind):
    held = variables(kernel=[1.0], bias=[1.0], gamma=[1.0])
    optimizer = kind(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[held[2]], var_names=["bias"])
    optimizer.build(held)
    assert [optimizer.decay_of(i) for i in range(3)] == [0.5, 0.0, 0.0]
    assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]
    with pytest.raises(ValueError, match=r"^expected a call of exclude_from_weight_decay before the optimizer is"):
        optimizer.exclude_from_weight_decay(var_names=["kernel"])


@ALL
def test_a_build_without_variables_refuses_no_pattern(kind):
    """Keras 3 builds the optimizer of an .h5 file before the model has variables."""
    kind(0.1, exclude_from_weight_decay=["bias"]).build([])


@ALL
def test_a_pattern_that_matches_no_path_is_an_error(kind):
    optimizer = kind(0.1, exclude_from_weight_decay=["bias", "gamma"])
    message = (
        "expected 'gamma' of exclude_from_weight_decay to match the path of a variable, received 2 paths that do "
        "not match, such as 'kernel', 'bias'; correct the pattern, or leave it out."
    )
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        optimizer.build(variables(kernel=[1.0], bias=[1.0]))


@BOTH
def test_an_empty_list_excludes_nothing_and_none_uses_the_patterns_of_the_decay(kind):
    def after(adaptation):
        held = variables(kernel=[3.0, 4.0], bias=[3.0, 4.0])
        options = {"exclude_from_weight_decay": ["bias"], "exclude_from_adaptation": adaptation}
        return stepped(kind(0.1, **options), held, [tf.constant([1.0, 2.0])] * 2)

    kernel, bias = after([])
    assert np.array_equal(kernel, bias)
    kernel, bias = after(None)
    assert not np.allclose(kernel, bias)


def test_patterns_match_the_paths_of_the_model():
    model = compiled(LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["hidden/bias"]))
    model.fit(*rows(), verbose=0)
    assert model.optimizer._undecayed == frozenset({1})
