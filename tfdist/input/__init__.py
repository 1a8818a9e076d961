"""Turns files into the batches that fit, evaluate, predict and a custom loop take on every strategy."""

import tfdist._needs_tensorflow  # noqa: F401
from tfdist.input.distribute import distribute_files
from tfdist.input.distributed_files import DistributedFiles
from tfdist.input.plan import File, Segment, ShardPlan, plan_shards
from tfdist.input.records import count_records, write_tfrecords
from tfdist.input.state import InputState

__all__ = [
    "DistributedFiles",
    "File",
    "InputState",
    "Segment",
    "ShardPlan",
    "count_records",
    "distribute_files",
    "plan_shards",
    "write_tfrecords",
]
