"""`python -m tfdist.input inspect`: what is in the files, and which pipeline would read what."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tfdist.input.find import compression_of, count_files, find_files
from tfdist.input.plan import POLICIES, plan_shards
from tfdist.input.read import Source
from tfdist.input.state import choose_canonical_shards


def inspect(pattern: str, *, num_pipelines: int, policy: str = "auto", global_batch_size: int | None = None) -> str:
    """Returns files, records, bytes, the plan and its imbalance as text.

    Args:
        pattern: of TFRecord files.
        num_pipelines: how many are to share them, one for each worker.
        policy: as for distribute_files.
        global_batch_size: as for distribute_files, which deals the files into shards by it; None takes as many shards
            as pipelines.

    Raises:
        ValueError: for what distribute_files refuses.
    """
    if num_pipelines < 1:
        raise ValueError(
            f"expected num_pipelines to be at least 1, received {num_pipelines}; give one for each worker."
        )
    files = find_files(pattern)
    source = Source(compression=compression_of(files))
    files, indexes, how = count_files(files, source, agree=None)
    shards = num_pipelines
    if global_batch_size is not None:
        if global_batch_size < 1 or global_batch_size % num_pipelines:
            raise ValueError(
                f"expected global_batch_size to be a multiple of the {num_pipelines} pipelines, received "
                f"{global_batch_size}; take another."
            )
        most = sum(file.size > 0 for file in files) if policy == "files" else None
        shards = choose_canonical_shards(global_batch_size, num_pipelines, most=most)
    plan = plan_shards([file for file in files if file.size] or files, shards, policy=policy)
    records, size = sum(file.records or 0 for file in files), sum(file.size for file in files)
    kind = f"{source.compression or 'uncompressed'} TFRecord"
    lines = [f"{len(files)} files, {kind}, {records:,} records by {how}, {size:,} bytes"]
    if indexes and not any(index.offsets for index in indexes.values()):
        lines.append("no file can be entered in the middle: starting there reads what lies before")
    if shards != num_pipelines:
        lines.append(f"{shards} canonical shards, {shards // num_pipelines} for each of {num_pipelines} pipelines:")
    return "\n".join([*lines, str(plan.of_pipelines(num_pipelines))])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tfdist.input", description="Looks at training data.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("inspect", help="what is in TFRecord files, and which pipeline would read what")
    command.add_argument("pattern", help="of files, in quotes")
    command.add_argument("--pipelines", type=int, default=1, help="how many share the files, one for each worker")
    command.add_argument("--policy", choices=POLICIES, default="auto")
    command.add_argument("--global-batch-size", type=int, help="deals files into canonical shards as training would")
    arguments = parser.parse_args(argv)
    try:
        text = inspect(
            arguments.pattern,
            num_pipelines=arguments.pipelines,
            policy=arguments.policy,
            global_batch_size=arguments.global_batch_size,
        )
    except ValueError as error:
        parser.exit(2, f"{parser.prog} inspect: {error}\n")
    print(text, end="")
    return 0
