"""Counters are added to in one operation, between whose halves no other worker can write."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist

keras = tf.keras


@pytest.fixture(autouse=True)
def mended(four_cpus: None, no_surroundings: None) -> None:
    tfdist.create_strategy("mirrored", devices=2)


def operations(graph: tf.Graph) -> list[str]:
    """Returns the types of the operations of a graph and of its functions."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return [node.op for node in nodes]


def test_a_metric_on_one_copy_of_its_state_adds_at_once() -> None:
    """Such as on a parameter server, where the state of a metric is one variable that says it is summed when read."""
    metric = keras.metrics.Mean()

    @tf.function
    def update(value: tf.Tensor) -> None:
        metric.update_state(value)

    found = operations(update.get_concrete_function(tf.TensorSpec([3])).graph)
    assert found.count("AssignAddVariableOp") == 2
    assert "AssignVariableOp" not in found
