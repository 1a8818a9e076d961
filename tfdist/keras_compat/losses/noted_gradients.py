"""NotedGradients: the gradients that a step has computed, and what is known of tensors that are computed from them."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import tensorflow as tf


class Kind(enum.IntEnum):
    """How a tensor is computed from gradients with respect to variables.

    Attributes:
        SHARED: from none of them, but from variables and constants alone, so that it is the same on all replicas.
        SLICES: as the values of IndexedSlices, each of them scaled.
        LINEAR: as a linear function of them.
        AFFINE: as a linear function, to which a shared tensor is added, such as a weight decay.
        OTHER: as another function of them, such as a norm or a clipped gradient.
    """

    SHARED = 0
    SLICES = 1
    LINEAR = 2
    AFFINE = 3
    OTHER = 4


@dataclasses.dataclass
class NotedGradients:
    """The gradients with respect to variables that the step has computed on this replica.

    Attributes:
        groups: the gradients of each call of a tape: dense tensors and IndexedSlices.
        kinds: tensors of this replica, by their id, and how they are computed from gradients.
        of_all: tensors for the global batch, by the id of the tensor of this replica.
        parts: the handles, by their id, of variables in which each replica has added up its own gradients.
        own: the handles of variables to which each replica has assigned another tensor of its own.
        lengths: numbers of slices of IndexedSlices, as far as they are known.
        sliced: the ids of tensors that have an entry for each slice.
    """

    groups: list[list[Any]] = dataclasses.field(default_factory=list)
    kinds: dict[int, tuple[tf.Tensor, Kind]] = dataclasses.field(default_factory=dict)
    of_all: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    parts: dict[int, Any] = dataclasses.field(default_factory=dict)
    own: dict[int, Any] = dataclasses.field(default_factory=dict)
    lengths: set[int] = dataclasses.field(default_factory=set)
    sliced: set[int] = dataclasses.field(default_factory=set)

    def in_branch(self) -> NotedGradients:
        """Returns what is known in a branch of the step: what becomes known there stays there, but for variables."""
        return dataclasses.replace(
            self,
            groups=list(self.groups),
            kinds=dict(self.kinds),
            of_all=dict(self.of_all),
            lengths=set(self.lengths),
            sliced=set(self.sliced),
        )

    def note(self, gradients: list[Any], graph: Any) -> None:
        """Notes the gradients of one call of a tape.

        Args:
            gradients: dense tensors, IndexedSlices, or None.
            graph: the graph in which replicas can wait for each other; None without one. They cannot add up what is
                computed in another graph.
        """
        group = [one for one in gradients if one is not None]
        if graph is None or any(getattr(part, "graph", None) is not graph for one in group for part in parts_of(one)):
            return
        self.groups.append(group)
        for gradient in group:
            first, *others = parts_of(gradient)
            self.kinds[id(first)] = (first, Kind.SLICES if others else Kind.LINEAR)
            self.kinds.update((id(one), (one, Kind.OTHER)) for one in others)
            if others:
                self.sliced |= set(map(id, parts_of(gradient)))
                self.lengths |= {first.shape[0]} - {None}

    def group_of(self, tensor: tf.Tensor) -> list[Any] | None:
        """Returns the gradients of the call that returned a tensor, or IndexedSlices with it; None if none did."""
        for group in self.groups:
            if any(tensor is part for gradient in group for part in parts_of(gradient)):
                return group
        return None


def parts_of(gradient: Any) -> list[tf.Tensor]:
    """Returns the values and the indices of IndexedSlices, or the only tensor of a dense gradient."""
    return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]
