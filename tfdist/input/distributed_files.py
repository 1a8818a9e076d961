"""The type that distribute_files returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tfdist.input.plan import ShardPlan
from tfdist.input.state import InputState


@runtime_checkable
class DistributedFiles(Protocol):
    """A dataset that distribute_files returns: a distributed dataset of TensorFlow with more attributes.

    The dataset is an instance of `tf.distribute.DistributedDataset`; `fit`, `evaluate`, `predict` and `tf.function`
    recognise it by this type. Outside of any strategy, the dataset is a `tf.data.Dataset`. Because of these two types,
    DistributedFiles is a protocol: any object with these attributes is an instance.

    Attributes:
        steps_per_epoch: number of steps of an epoch, the same for every input pipeline. Under a parameter server
            strategy, the number of steps that all workers together make in an epoch.
        repeats: whether the dataset repeats without end, as it does with training=True; otherwise it ends after one
            epoch.
        plan: the segments of files that each canonical shard reads.
        state: position at which the first iteration begins, with the number of canonical shards in force. It does not
            change while the dataset is read: `state.after(steps, steps_per_epoch=...)` returns a later position.
        at: returns the dataset of the same files that begins at another position, an InputState.

    Example:
        >>> import tempfile, tensorflow as tf, tfdist
        >>> from tfdist.input import DistributedFiles, distribute_files, write_tfrecords
        >>> files = write_tfrecords([b"%d" % i for i in range(64)], tempfile.mkdtemp() + "/numbers", num_shards=4)
        >>> strategy = tfdist.create_strategy("one_device")
        >>> dataset = distribute_files(strategy, files, parse_fn=tf.strings.to_number, global_batch_size=16)
        >>> isinstance(dataset, DistributedFiles), isinstance(dataset, tf.distribute.DistributedDataset)
        (True, True)
        >>> dataset.steps_per_epoch, dataset.repeats, dataset.plan.records
        (4, True, (8, 8, 8, 8, 8, 8, 8, 8))
        >>> dataset.state.after(6, steps_per_epoch=dataset.steps_per_epoch)
        InputState(seed=0, epoch=1, step=2, canonical_shards=8)
    """

    steps_per_epoch: int
    repeats: bool
    plan: ShardPlan
    state: InputState
    at: Callable[[InputState], DistributedFiles]

    if TYPE_CHECKING:
        # For type checkers only: under a parameter server strategy, the dataset has no element_spec before its workers
        # build it, and would not be an instance of the protocol at run time.
        @property
        def element_spec(self) -> Any:
            """Type specification of a batch."""

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator over the batches of all replicas, one element for each step."""


def with_attributes(
    dataset: Any,
    *,
    steps_per_epoch: int,
    repeats: bool,
    plan: ShardPlan,
    state: InputState,
    at: Callable[[InputState], DistributedFiles],
) -> DistributedFiles:
    """Returns the same dataset after setting the attributes of DistributedFiles.

    Args:
        dataset: the dataset that strategy.distribute_datasets_from_function returns.
        steps_per_epoch: number of steps of an epoch.
        repeats: whether the dataset repeats without end.
        plan: the segments of files that each canonical shard reads.
        state: position at which the dataset begins.
        at: returns the dataset that begins at another position.
    """
    dataset.steps_per_epoch, dataset.repeats = steps_per_epoch, repeats
    dataset.plan, dataset.state, dataset.at = plan, state, at
    return dataset
