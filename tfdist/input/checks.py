"""Refuses options of distribute_files that contradict each other or the data, with a ValueError."""

from __future__ import annotations

from tfdist.input.plan import POLICIES
from tfdist.input.state import InputState


def check_order(
    *, training: bool, policy: str, seed: int | None, shuffle_buffer: int | None, state: InputState | None
) -> None:
    """Checks the options that decide the order of records.

    Args:
        training: whether records are shuffled and repeated.
        policy: policy of plan_shards, or `local`.
        seed: seed of the order, or None.
        shuffle_buffer: number of records to shuffle, or None.
        state: position at which reading begins, or None.
    """
    if policy not in (*POLICIES, "local"):
        raise ValueError(f"expected policy to be one of {', '.join(POLICIES)}, local, received {policy!r}.")
    if not training and (seed is not None or shuffle_buffer is not None):
        raise ValueError(
            "expected no seed and no shuffle_buffer with training=False, which does not shuffle, received "
            f"seed={seed} and shuffle_buffer={shuffle_buffer}."
        )
    if not training and policy == "replicate":
        raise ValueError(
            "expected a policy that reads every record once with training=False, received 'replicate'; use 'auto'."
        )
    if state is not None and seed is not None:
        raise ValueError(
            f"expected seed or state, received seed={seed} and state={state}; pass the seed to InputState."
        )
    if shuffle_buffer is not None and shuffle_buffer < 0:
        raise ValueError(f"expected shuffle_buffer to be 0 (no shuffling) or more, received {shuffle_buffer}.")


def check_reading(
    *,
    has_reader: bool,
    compression: str | None,
    skip_corrupt: bool,
    drop_remainder: bool,
    cache: bool,
    num_threads: int | None,
) -> None:
    """Checks the options that decide how files are read.

    Args:
        has_reader: whether the user passes a reader.
        compression: compression of TFRecord files; None detects the compression from the first file.
        skip_corrupt: whether records that cannot be read are skipped.
        drop_remainder: whether batches that are not full are left out.
        cache: whether records are kept in memory.
        num_threads: number of threads, or None.
    """
    if compression not in (None, "", "GZIP"):
        raise ValueError(f"expected compression to be 'GZIP', '' or None, received {compression!r}.")
    if has_reader and compression:
        raise ValueError("expected compression or a reader, received both; decompress the files in the reader.")
    if cache and skip_corrupt:
        raise ValueError(
            "expected cache or skip_corrupt, received both; write the files again without the corrupt records."
        )
    if skip_corrupt and drop_remainder:
        raise ValueError(
            "expected skip_corrupt or drop_remainder, received both: a batch that has lost a record is not full."
        )
    if skip_corrupt and has_reader:
        raise ValueError("expected skip_corrupt or a reader, received both; skip the records in the reader.")
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"expected num_threads to be at least 1 or None, received {num_threads}.")


def check_batch_size(global_batch_size: int, *, num_replicas: int) -> None:
    """Checks that the number of replicas divides the global batch.

    Args:
        global_batch_size: records in a step over all replicas.
        num_replicas: number of replicas in sync.

    Example:
        >>> from tfdist.input.checks import check_batch_size
        >>> check_batch_size(100, num_replicas=3)
        Traceback (most recent call last):
        ValueError: expected global_batch_size to be a multiple of the 3 replicas, received 100; use 99.
    """
    if global_batch_size < 1 or global_batch_size % num_replicas:
        nearest = max(1, round(global_batch_size / num_replicas)) * num_replicas
        raise ValueError(
            f"expected global_batch_size to be a multiple of the {num_replicas} replicas, received "
            f"{global_batch_size}; use {nearest}."
        )


def check_state(state: InputState, *, policy: str, in_sync: bool) -> None:
    """Checks that reading can begin at a position.

    Args:
        state: position at which reading begins.
        policy: policy of plan_shards.
        in_sync: whether all pipelines make each step together.
    """
    if state.step and not in_sync:
        raise ValueError(
            "expected a state with step 0 for a parameter server strategy, whose workers make steps independently, "
            f"received step {state.step}; begin at the start of an epoch."
        )
    if state.canonical_shards is not None and policy == "replicate":
        raise ValueError(
            f"expected canonical_shards=None with the policy 'replicate', received {state.canonical_shards}."
        )


def check_step(state: InputState, *, steps_per_epoch: int) -> None:
    """Checks that the step of a position lies within its epoch.

    Args:
        state: position at which reading begins.
        steps_per_epoch: number of steps of an epoch.
    """
    if state.step >= steps_per_epoch:
        raise ValueError(
            f"expected a step below the {steps_per_epoch} steps of an epoch, received {state.step}; compute the state "
            "with InputState.after()."
        )


def check_number_of_records(records: int, *, files: int, training: bool, global_batch_size: int) -> None:
    """Checks that there is a global batch to train on, or a record to evaluate.

    Args:
        records: number of records in all files.
        files: number of files.
        training: whether records are shuffled and repeated.
        global_batch_size: records in a step.
    """
    if training and records < global_batch_size:
        raise ValueError(
            f"expected at least one global batch of {global_batch_size} records in {files} files, received {records}; "
            "add files, or lower global_batch_size."
        )
    if not records:
        raise ValueError(f"expected at least one record in {files} files, received none; add files.")
