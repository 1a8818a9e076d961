"""Who reads what: from files and a number of shards to a plan, as a pure function."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

POLICIES: tuple[str, ...] = ("auto", "files", "records", "replicate")
# Beyond it the end of an epoch has too few shards left that fill a batch.
AUTO_IMBALANCE = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A file to read.

    Attributes:
        name: its path.
        size: in bytes.
        records: how many it holds; None where nobody has counted.
    """

    name: str
    size: int
    records: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a file.

    Attributes:
        file: its path.
        start: first record.
        stop: one past the last record; None for the end of the file.
        size: bytes, in proportion to the records of a file that is split.
    """

    file: str
    start: int = 0
    stop: int | None = None
    size: int = 0

    @property
    def records(self) -> int | None:
        """How many records it holds, if that is known."""
        return None if self.stop is None else self.stop - self.start


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """Which shard reads what.

    Attributes:
        policy: files, records or replicate.
        shards: the segments of each shard, in the order of the files' names.
    """

    policy: str
    shards: tuple[tuple[Segment, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each shard."""
        return tuple(sum(segment.size for segment in shard) for shard in self.shards)

    @property
    def records(self) -> tuple[int | None, ...]:
        """Records of each shard; None where a file was not counted."""
        return tuple(_total([segment.records for segment in shard]) for shard in self.shards)

    @property
    def imbalance(self) -> float:
        """The largest shard over the mean, in bytes: 1 is balanced."""
        sizes = self.sizes
        return max(sizes) * len(sizes) / total if (total := sum(sizes)) else 1.0

    def of_pipelines(self, num_pipelines: int) -> ShardPlan:
        """Returns the plan whose shards are what each pipeline reads: as many neighbouring shards each.

        Raises:
            ValueError: if the pipelines do not divide the shards.
        """
        if num_pipelines < 1 or len(self.shards) % num_pipelines:
            raise ValueError(
                f"expected a number of pipelines that divides the {len(self.shards)} shards, received {num_pipelines}; "
                "plan other shards."
            )
        each = len(self.shards) // num_pipelines
        groups = [self.shards[i : i + each] for i in range(0, len(self.shards), each)]
        return ShardPlan(policy=self.policy, shards=tuple(sum(group, ()) for group in groups))

    def __str__(self) -> str:
        """Returns a table with a line for each shard."""
        return _table(self)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def plan_shards(files: Sequence[File | str], num_shards: int, *, policy: str = "auto") -> ShardPlan:
    """Returns who reads what.

    With the policy `files` each file belongs to one shard, and the largest shard is as small as a greedy choice makes
    it: the largest file first, each to the shard that has least. With `records` the files are laid end to end and cut
    into parts that differ by one record at most. With `replicate` every shard has everything. `auto` takes files
    where that is within a tenth of balanced, or nobody has counted records, else records.

    Args:
        files: with sizes and, for `records`, counts; a name alone stands for a file of size 1.
        num_shards: how many parts, at least 1.
        policy: auto, files, records or replicate.

    Raises:
        ValueError: for no files, a file that comes twice, fewer files than shards with `files`, and files whose records
            nobody has counted with `records`.

    Example:
        >>> from tfdist.input import File, plan_shards
        >>> files = [File(name="a", size=7), File(name="b", size=4), File(name="c", size=4)]
        >>> plan = plan_shards(files, 2)
        >>> [[segment.file for segment in shard] for shard in plan.shards], plan.sizes
        ([['a'], ['b', 'c']], (7, 8))
    """
    given = [file if isinstance(file, File) else File(name=file, size=1) for file in files]
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
        raise ValueError(f"expected policy to be one of {', '.join(POLICIES)}, received {policy!r}; choose one.")
    if num_shards < 1:
        raise ValueError(f"expected num_shards to be at least 1, received {num_shards}; give each pipeline one.")
    if not files:
        raise ValueError("expected at least one file, received none; check the pattern.")
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise ValueError(f"expected every file once, received {file.name!r} twice; leave one out.")
        if file.size < 0 or (file.records or 0) < 0:
            raise ValueError(f"expected a size and a count of 0 or more, received {file}; count it again.")
        seen.add(file.name)


def _whole(file: File) -> Segment:
    return Segment(file=file.name, stop=file.records, size=file.size)


def _by_file(files: Sequence[File], num_shards: int) -> tuple[tuple[Segment, ...], ...]:
    shards: list[list[File]] = [[] for _ in range(num_shards)]
    # By bytes, then by files, so that empty files are spread as well.
    heap = [(0, 0, shard) for shard in range(num_shards)]
    for file in sorted(files, key=lambda file: (-file.size, file.name)):
        size, count, shard = heapq.heappop(heap)
        shards[shard].append(file)
        heapq.heappush(heap, (size + file.size, count + 1, shard))
    return tuple(tuple(_whole(file) for file in sorted(shard, key=lambda file: file.name)) for shard in shards)


def _by_record(files: Sequence[File], num_shards: int) -> tuple[tuple[Segment, ...], ...]:
    for file in files:
        if file.records is None:
            raise ValueError(
                f"expected the number of records of every file with the policy 'records', received {file.name!r} "
                "without; count them, or write an index."
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


def _table(plan: ShardPlan) -> str:
    import rich.box
    from rich.console import Console
    from rich.table import Table

    table = Table("shard", "files", "records", "bytes", "of the mean", box=rich.box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    mean = sum(plan.sizes) / len(plan.shards)
    for number, (shard, size, records) in enumerate(zip(plan.shards, plan.sizes, plan.records, strict=True)):
        share = f"{size / mean:.3f}" if mean else "-"
        table.add_row(str(number), str(len(shard)), "?" if records is None else f"{records:,}", f"{size:,}", share)
    console = Console(width=88, color_system=None)
    with console.capture() as capture:
        console.print(table)
        console.print(f"policy {plan.policy}, imbalance {plan.imbalance:.3f} (largest shard over the mean)")
    return capture.get()
