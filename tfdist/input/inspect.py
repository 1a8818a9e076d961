"""The command `python -m tfdist.input inspect`: shows what files contain and what each input pipeline would read."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist._suggestions import Parser
from tfdist.input.find import compression_of, count_files, find_files
from tfdist.input.plan import POLICIES, plan_shards
from tfdist.input.read import Source
from tfdist.input.state import choose_canonical_shards


def inspect(pattern: str, *, num_pipelines: int, policy: str = "auto", global_batch_size: int | None = None) -> str:
    """Returns a text with the number of files, records and bytes, and a table of what each pipeline would read.

    Args:
        pattern: pattern of TFRecord files.
        num_pipelines: number of input pipelines, one for each worker.
        policy: policy of plan_shards.
        global_batch_size: records in a step over all pipelines, from which distribute_files chooses the number of
            canonical shards; None plans one shard for each pipeline.

    Raises:
        ValueError: if distribute_files would refuse the files or the numbers.

    Example:
        >>> import tempfile
        >>> from tfdist.input import write_tfrecords
        >>> from tfdist.input.inspect import inspect
        >>> prefix = tempfile.mkdtemp() + "/letters"
        >>> files = write_tfrecords([b"a", b"b", b"c"], prefix, num_shards=2)
        >>> print(inspect(prefix + "-*", num_pipelines=1).splitlines()[0])
        2 files, uncompressed TFRecord, 3 records (from an index), 51 bytes
    """
    if num_pipelines < 1:
        raise ValueError(f"expected num_pipelines to be at least 1, received {num_pipelines}.")
    files = find_files(pattern)
    source = Source(compression=compression_of(files))
    files, indexes, how = count_files(files, source, sum_over_workers=None)
    shards = num_pipelines
    if global_batch_size is not None:
        if global_batch_size < 1 or global_batch_size % num_pipelines:
            raise ValueError(
                f"expected global_batch_size to be a multiple of the {num_pipelines} pipelines, received "
                f"{global_batch_size}."
            )
        most = sum(file.size > 0 for file in files) if policy == "files" else None
        shards = choose_canonical_shards(global_batch_size, num_pipelines, most=most)
    plan = plan_shards([file for file in files if file.size] or files, shards, policy=policy)
    records, size = sum(file.records or 0 for file in files), sum(file.size for file in files)
    kind = f"{source.compression or 'uncompressed'} TFRecord"
    lines = [f"{len(files)} files, {kind}, {records:,} records ({how}), {size:,} bytes"]
    if indexes and not any(index.offsets for index in indexes.values()):
        lines.append("no index has byte offsets: a start in the middle of a file reads the file from its beginning")
    if shards != num_pipelines:
        lines.append(f"{shards} canonical shards, {shards // num_pipelines} for each of {num_pipelines} pipelines:")
    return "\n".join([*lines, str(plan.of_pipelines(num_pipelines))])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(prog="python -m tfdist.input", description="Shows what training data contains.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "inspect", help="show what TFRecord files contain, and which input pipeline would read which part"
    )
    command.add_argument("pattern", help="pattern of TFRecord files, in quotes")
    command.add_argument("--pipelines", type=int, default=1, help="number of input pipelines, one for each worker")
    command.add_argument("--policy", choices=POLICIES, default="auto", help="how the files are divided")
    command.add_argument(
        "--global-batch-size", type=int, help="records in a step; divides the files into shards as training would"
    )
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
    except tf.errors.OpError as error:
        reason = f"{type(error).__name__}: {str(error.message).splitlines()[0]}"
        parser.exit(1, f"{parser.prog} inspect: expected readable files, received {reason}\n")
    print(text, end="")
    return 0
