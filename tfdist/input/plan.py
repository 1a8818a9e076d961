"""Decides which shard reads which part of which file: a pure function from files to a plan."""

from __future__ import annotations

import dataclasses
import heapq
import os
from collections.abc import Sequence

from tfdist._paths import text_of_path
from tfdist.input.plan_table import format_table

POLICIES: tuple[str, ...] = ("auto", "files", "records", "replicate")
# With a larger imbalance, too few shards have records left at the end of an epoch to fill a batch.
AUTO_IMBALANCE = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A file of records.

    Attributes:
        name: path of the file.
        size: size of the file in bytes.
        records: number of records in the file; None if they have not been counted.

    Example:
        >>> from tfdist.input import File, plan_shards
        >>> files = [File(name="a", size=300, records=3), File(name="b", size=100, records=1)]
        >>> plan_shards(files, 2).records
        (2, 2)
    """

    name: str
    size: int
    records: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
    """A range of records in a file.

    Attributes:
        file: path of the file.
        start: number of the first record, counted from 0.
        stop: number of the record after the last one; None for the end of the file.
        size: bytes of the segment. The bytes of a file that is split are divided in proportion to the records.

    Example:
        >>> from tfdist.input import Segment
        >>> Segment(file="a", start=2, stop=5).records
        3
    """

    file: str
    start: int = 0
    stop: int | None = None
    size: int = 0

    @property
    def records(self) -> int | None:
        """Number of records in the segment; None if `stop` is None."""
        return None if self.stop is None else self.stop - self.start


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """The segments that each shard reads. `str(plan)` is a table with one row for each shard.

    Attributes:
        policy: the policy in force: files, records or replicate.
        shards: the segments of each shard, ordered by file name.

    Example:
        >>> from tfdist.input import Segment, ShardPlan
        >>> plan = ShardPlan(policy="files", shards=((Segment(file="a", size=30),), (Segment(file="b", size=10),)))
        >>> plan.sizes, plan.imbalance
        ((30, 10), 1.5)
    """

    policy: str
    shards: tuple[tuple[Segment, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each shard."""
        return tuple(sum(segment.size for segment in shard) for shard in self.shards)

    @property
    def records(self) -> tuple[int | None, ...]:
        """Number of records of each shard; None if one of its files has not been counted."""
        return tuple(_sum_if_known([segment.records for segment in shard]) for shard in self.shards)

    @property
    def imbalance(self) -> float:
        """Records of the largest shard, divided by the mean; 1 for a balanced plan. Without counts, bytes instead."""
        records = [count for count in self.records if count is not None]
        amounts = records if len(records) == len(self.shards) else self.sizes
        return max(amounts) * len(amounts) / total if (total := sum(amounts)) else 1.0

    def of_pipelines(self, num_pipelines: int) -> ShardPlan:
        """Returns a plan with one shard for each input pipeline, which joins the shards that the pipeline reads.

        Args:
            num_pipelines: number of input pipelines. Each of them reads the same number of neighbouring shards.

        Raises:
            ValueError: if num_pipelines does not divide the number of shards.
        """
        if num_pipelines < 1 or len(self.shards) % num_pipelines:
            raise ValueError(
                f"expected a number of pipelines that divides the {len(self.shards)} shards, received {num_pipelines}."
            )
        each = len(self.shards) // num_pipelines
        groups = [self.shards[i : i + each] for i in range(0, len(self.shards), each)]
        return ShardPlan(policy=self.policy, shards=tuple(sum(group, ()) for group in groups))

    def __str__(self) -> str:
        """Returns a table with one row for each shard."""
        return format_table(
            policy=self.policy,
            imbalance=self.imbalance,
            segments=[len(shard) for shard in self.shards],
            records=self.records,
            sizes=self.sizes,
        )


def _sum_if_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def plan_shards(files: Sequence[File | str | os.PathLike[str]], num_shards: int, *, policy: str = "auto") -> ShardPlan:
    """Returns a plan that divides files among shards.

    The plan depends on the names, sizes and counts of the files, and not on the order in which they are listed.

    Args:
        files: File values with sizes and, for the policy `records`, numbers of records. A name alone stands for a file
            of size 1.
        num_shards: number of shards, at least 1.
        policy: how the files are divided.

            - `files`: each file belongs to one shard. Files are taken from the largest to the smallest, and each goes
              to the shard with the fewest records so far, or the fewest bytes if some file has not been counted.
            - `records`: the files are laid end to end and cut into parts whose numbers of records differ by at most 1.
            - `replicate`: every shard reads all files.
            - `auto`: `files` if there are enough files and the largest shard is at most 1.1 times the mean, or if some
              file has not been counted; otherwise `records`.

    Raises:
        ValueError: if there are no files, if a file is listed twice, if there are fewer files than shards with the
            policy `files`, or if a file has not been counted with the policy `records`.

    Example:
        >>> from tfdist.input import File, plan_shards
        >>> files = [File(name="a", size=7), File(name="b", size=4), File(name="c", size=4)]
        >>> plan = plan_shards(files, 2)
        >>> [[segment.file for segment in shard] for shard in plan.shards], plan.sizes
        ([['a'], ['b', 'c']], (7, 8))
    """
    given = [file if isinstance(file, File) else File(name=text_of_path(file), size=1) for file in files]
    _check(given, num_shards, policy)
    ordered = sorted(given, key=lambda file: file.name)
    if policy == "replicate":
        return ShardPlan(policy=policy, shards=(tuple(_whole(file) for file in ordered),) * num_shards)
    if policy != "records" and len(given) >= num_shards:
        plan = ShardPlan(policy="files", shards=_by_file(ordered, num_shards))
        counted = all(file.records is not None for file in given)
        if policy == "files" or plan.imbalance <= AUTO_IMBALANCE or not counted:
            return plan
    elif policy == "files":
        raise ValueError(
            f"expected at least {num_shards} files, one for each shard, received {len(given)}; write more files, or "
            "use the policy 'records'."
        )
    return ShardPlan(policy="records", shards=_by_record(ordered, num_shards))


def _check(files: Sequence[File], num_shards: int, policy: str) -> None:
    if policy not in POLICIES:
        raise ValueError(f"expected policy to be one of {', '.join(POLICIES)}, received {policy!r}.")
    if num_shards < 1:
        raise ValueError(f"expected num_shards to be at least 1, received {num_shards}.")
    if not files:
        raise ValueError("expected at least one file, received none; check the pattern.")
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise ValueError(f"expected every file once, received {file.name!r} twice.")
        if file.size < 0 or (file.records or 0) < 0:
            raise ValueError(f"expected a size and a number of records of 0 or more, received {file}.")
        seen.add(file.name)


def _whole(file: File) -> Segment:
    return Segment(file=file.name, stop=file.records, size=file.size)


def _by_file(files: Sequence[File], num_shards: int) -> tuple[tuple[Segment, ...], ...]:
    counts = [file.records for file in files if file.records is not None]
    # A step takes the same number of records from each shard, however long they are.
    amounts = counts if len(counts) == len(files) else [file.size for file in files]
    shards: list[list[File]] = [[] for _ in range(num_shards)]
    # Ordered by amount, then by number of files, so that empty files are spread over the shards as well.
    heap = [(0, 0, shard) for shard in range(num_shards)]
    for amount, file in sorted(zip(amounts, files, strict=True), key=lambda pair: (-pair[0], pair[1].name)):
        total, count, shard = heapq.heappop(heap)
        shards[shard].append(file)
        heapq.heappush(heap, (total + amount, count + 1, shard))
    return tuple(tuple(_whole(file) for file in sorted(shard, key=lambda file: file.name)) for shard in shards)


def _by_record(files: Sequence[File], num_shards: int) -> tuple[tuple[Segment, ...], ...]:
    for file in files:
        if file.records is None:
            raise ValueError(
                f"expected the number of records of every file with the policy 'records', received {file.name!r} "
                "without a number; pass File(name=..., size=..., records=...)."
            )
    total = sum(file.records or 0 for file in files)
    bounds = [total * shard // num_shards for shard in range(num_shards + 1)]
    shards: list[list[Segment]] = [[] for _ in range(num_shards)]
    first = 0
    for file in files:
        records = file.records or 0
        for shard in range(num_shards):
            start, stop = (min(max(bound - first, 0), records) for bound in bounds[shard : shard + 2])
            if start < stop:
                size = file.size * stop // records - file.size * start // records
                shards[shard].append(Segment(file=file.name, start=start, stop=stop, size=size))
        first += records
    return tuple(map(tuple, shards))
