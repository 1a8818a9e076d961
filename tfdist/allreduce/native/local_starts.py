"""Within a graph, a replica waits for a collective only after all replicas of its process have started it.

If a replica fails, its next collective never starts. TensorFlow ends a failed step as soon as all asynchronous
operations that run have ended, and cannot cancel those of its C API. A replica that already waited for the collective
would therefore wait until its deadline. With a control dependency from the starts of the other replicas to the wait,
the wait does not begin, and the step ends at once. No result comes later: it needs these starts anyway.

Replicas start the same collectives in the same order, so that the dependencies have no cycle. Starts in different
graphs, such as in a tf.cond inside of a replica, cannot be connected; there the deadline ends the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import tensorflow as tf

_ATTRIBUTE = "_tfdist_collectives"


@dataclasses.dataclass
class _Collectives:
    """The operations of the collectives of a group in one graph: for each collective, by replica."""

    starts: list[dict[int, tf.Operation]] = dataclasses.field(default_factory=list)
    waits: list[dict[int, tf.Operation]] = dataclasses.field(default_factory=list)
    started: dict[int, int] = dataclasses.field(default_factory=dict)


def remember_start(start: tf.Operation, *, group: Hashable, replica: int) -> int:
    """Lets the waits of other replicas for a collective begin after its start on this replica.

    Called for all starts of a replica, in their order.

    Args:
        start: an operation of a graph.
        group: equal for the replicas of a strategy in this process.
        replica: number of the replica.

    Returns:
        The number of the collective in the graph.
    """
    found = _of_graph(start.graph, group)
    number = found.started.get(replica, 0)
    found.started[replica] = number + 1
    if number == len(found.starts):
        found.starts.append({})
        found.waits.append({})
    found.starts[number][replica] = start
    for wait in found.waits[number].values():
        wait._add_control_input(start)
    return number


def remember_wait(wait: tf.Operation, number: int, *, group: Hashable, replica: int) -> None:
    """Lets the wait of a replica for a collective begin after its starts on all replicas of this process.

    Args:
        wait: an operation of the same graph as the start.
        number: of the collective, from `remember_start`.
        group: as for `remember_start`.
        replica: number of the replica.
    """
    found = _of_graph(wait.graph, group)
    found.waits[number][replica] = wait
    wait._add_control_inputs([start for other, start in found.starts[number].items() if other != replica])


def _of_graph(graph: tf.Graph, group: Hashable) -> _Collectives:
    # The graph owns them: a table elsewhere would keep the graph, which its operations refer to.
    groups = getattr(graph, _ATTRIBUTE, None)
    if groups is None:
        groups = {}
        setattr(graph, _ATTRIBUTE, groups)
    return groups.setdefault(group, _Collectives())
