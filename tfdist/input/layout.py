"""Divides the records of all files among canonical shards, pipelines and steps, identically on every worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfdist.input.index import RecordIndex
from tfdist.input.plan import File, ShardPlan, plan_shards
from tfdist.input.read import ShardTable
from tfdist.input.state import choose_canonical_shards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The division of records among canonical shards, pipelines and steps.

    Attributes:
        plan: the segments of each canonical shard.
        table: the plan as arrays.
        rows_per_shard: number of records that a step takes from each shard.
        steps_of_pipelines: number of steps of an epoch for each pipeline, int64 of shape [pipelines].
        in_sync: whether all pipelines make each step together.
        all_steps_full: whether every step takes `rows_per_shard` records from every shard.
    """

    plan: ShardPlan
    table: ShardTable
    rows_per_shard: int
    steps_of_pipelines: np.ndarray
    in_sync: bool
    all_steps_full: bool

    @classmethod
    def of(
        cls,
        files: Sequence[File],
        indexes: dict[str, RecordIndex],
        *,
        divided: tuple[ShardPlan, ShardTable] | None = None,
        policy: str,
        global_batch_size: int,
        num_pipelines: int,
        canonical_shards: int | None,
        drop_remainder: bool,
        in_sync: bool,
        records_may_be_lost: bool,
    ) -> Layout:
        """Returns the layout of counted files.

        Args:
            files: files with their numbers of records.
            indexes: indexes of the files that have one, by name.
            divided: a plan with one shard for each pipeline, and its table, for the policy `local`.
            policy: policy of plan_shards, or `local`.
            global_batch_size: records in a step: of all pipelines if they are in sync, else of each pipeline.
            num_pipelines: number of input pipelines.
            canonical_shards: number of shards that the user asks for, or None.
            drop_remainder: whether steps that are not full are left out.
            in_sync: whether all pipelines make each step together.
            records_may_be_lost: whether records that cannot be read are skipped, so that no step is certain to be full.

        Raises:
            ValueError: if the files or canonical_shards do not fit, or if drop_remainder leaves no step.
        """
        full_files = [file for file in files if file.size]
        rows = global_batch_size * (1 if in_sync else num_pipelines)
        shards = num_pipelines
        if divided is None and policy != "replicate":
            most = len(full_files) if policy == "files" else None
            shards = choose_canonical_shards(rows, num_pipelines, canonical_shards, most=most)
        plan = plan_shards(full_files, shards, policy=policy) if divided is None else divided[0]
        table = ShardTable(plan, indexes) if divided is None else divided[1]
        rows_per_shard = rows // shards
        full_steps = (table.records // rows_per_shard).reshape([num_pipelines, -1])
        all_steps = (-(-table.records // rows_per_shard)).reshape([num_pipelines, -1])
        steps = full_steps.min(axis=1) if drop_remainder else all_steps.max(axis=1)
        if in_sync:
            steps[:] = steps.min() if drop_remainder else steps.max()
        if drop_remainder and not steps.min():
            raise ValueError(
                f"expected at least {rows_per_shard} records in each of {shards} canonical shards with "
                f"drop_remainder=True, received {table.records.min()}; lower global_batch_size, or use the policy "
                "'records'."
            )
        return cls(
            plan=plan,
            table=table,
            rows_per_shard=rows_per_shard,
            steps_of_pipelines=steps,
            in_sync=in_sync,
            all_steps_full=not records_may_be_lost and bool((full_steps >= steps[:, None]).all()),
        )

    @property
    def steps(self) -> int:
        """Number of steps of an epoch; if pipelines are not in sync, the steps of all pipelines together."""
        return int(self.steps_of_pipelines.max() if self.in_sync else self.steps_of_pipelines.sum())
