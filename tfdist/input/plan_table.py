"""Formats the table that `str(plan)` returns."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(
    *, policy: str, imbalance: float, segments: Sequence[int], records: Sequence[int | None], sizes: Sequence[int]
) -> str:
    """Returns a table with one row for each shard, and a last line with the policy and the imbalance.

    Args:
        policy: the policy of the plan.
        imbalance: records of the largest shard, divided by the mean; bytes if a shard has not been counted.
        segments: number of segments of each shard.
        records: number of records of each shard; None is shown as "?".
        sizes: bytes of each shard.

    Example:
        >>> from tfdist.input.plan_table import format_table
        >>> table = format_table(policy="files", imbalance=1.5, segments=[1, 1], records=[2, None], sizes=[3000, 1000])
        >>> print(table.splitlines()[-1])
        policy files, imbalance 1.500 (largest shard over the mean)
    """
    # Imported here because most programs never print a plan.
    import rich.box
    from rich.console import Console
    from rich.table import Table

    table = Table("shard", "files", "records", "bytes", "of the mean", box=rich.box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    counts = [count for count in records if count is not None]
    amounts = counts if len(counts) == len(sizes) else sizes
    mean = sum(amounts) / len(amounts)
    for shard, (files, count, size) in enumerate(zip(segments, records, sizes, strict=True)):
        share = f"{amounts[shard] / mean:.3f}" if mean else "-"
        table.add_row(str(shard), str(files), "?" if count is None else f"{count:,}", f"{size:,}", share)
    # In a notebook, rich would also display an empty frame.
    console = Console(width=88, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        console.print(table)
        console.print(f"policy {policy}, imbalance {imbalance:.3f} (largest shard over the mean)")
    return capture.get()
