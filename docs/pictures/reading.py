"""Who reads what: files of different lengths, their canonical shards, and the pipelines that read these shards."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from docs.pictures.style import BLUE, GREEN, GREY, ORANGE, PAPER, SMALL, YELLOW, box, canvas, label
from tfdist.input.plan import File, plan_shards
from tfdist.input.state import choose_canonical_shards

RECORDS = {"a": 300, "b": 120, "c": 260, "d": 200, "e": 80}
GLOBAL_BATCH = 32
PIPELINES = (1, 2, 4)


def data() -> dict[str, Any]:
    """Returns the plan of `plan_shards` for each number of pipelines."""
    files = [File(name=name, size=1000 * records, records=records) for name, records in RECORDS.items()]
    number = choose_canonical_shards(GLOBAL_BATCH, max(PIPELINES))
    plan = plan_shards(files, number)

    def plain(shards: Any) -> list[list[list[Any]]]:
        return [[[segment.file, segment.start, segment.stop] for segment in shard] for shard in shards]

    return {
        "records": RECORDS,
        "global batch": GLOBAL_BATCH,
        "policy": plan.policy,
        "shards": plain(plan.shards),
        "pipelines": {str(count): plain(plan.of_pipelines(count).shards) for count in PIPELINES},
    }


def draw(data: dict[str, Any]) -> Figure:
    """Draws the files, the shards, and the pipelines below each other, on one scale of records.

    Args:
        data: what `data` has returned.
    """
    records, shards = data["records"], data["shards"]
    figure, axes = canvas(9.6, 5.4)
    left, width = 17.0, 77.0
    first = dict(zip(records, _begins(list(records.values())), strict=True))
    total = sum(records.values())

    def place(record: int) -> float:
        return left + width * record / total

    label(axes, 2, 47, f"{len(records)} files,\n{total} records")
    faces = (BLUE, ORANGE, GREEN, YELLOW, GREY)
    for (name, count), face in zip(records.items(), faces, strict=True):
        x = place(first[name])
        box(axes, x, 44, place(first[name] + count) - x, 6, f"file {name}: {count}", face=face)
    label(axes, 2, 37.2, f"{len(shards)} canonical\nshards, policy\n{data['policy']!r}")
    for number, shard in enumerate(shards):
        for name, start, stop in shard:
            x = place(first[name] + start)
            face = faces[list(records).index(name)]
            box(axes, x, 34, place(first[name] + stop) - x, 6, face=face, style=":")
        begin = first[shard[0][0]] + shard[0][1]
        end = first[shard[-1][0]] + shard[-1][2]
        box(axes, place(begin), 34, place(end) - place(begin), 6, face="none", edge="#1b1b1b")
        middle = (place(begin) + place(end)) / 2
        label(axes, middle, 38, f"shard {number}", ha="center", weight="bold", fontsize=SMALL)
        pieces = "\n".join(f"{name} {start}-{stop - 1}" for name, start, stop in shard)
        label(axes, middle, 31.6 if len(shard) == 1 else 30.8, pieces, ha="center", fontsize=7.5)
    label(axes, 2, 31.2, "records of\na file", fontsize=SMALL)
    for row, (count, pipelines) in enumerate(data["pipelines"].items()):
        y = 20.5 - 6.6 * row
        each = data["global batch"] // int(count)
        label(axes, 2, y + 2.3, f"{count} pipeline{'s' * (count != '1')}")
        for number, segments in enumerate(pipelines):
            begin = first[segments[0][0]] + segments[0][1]
            end = first[segments[-1][0]] + segments[-1][2]
            x = place(begin)
            text = f"pipeline {number}" if int(count) > 2 else f"pipeline {number}: {each} records of each step"
            box(axes, x, y, place(end) - x, 4.6, text, face=PAPER, size=SMALL)
    rows = data["global batch"] // len(shards)
    label(
        axes,
        2,
        3.2,
        f"Each step takes {rows} records from every shard: the same {data['global batch']} records, however many "
        "pipelines there are.",
    )
    return figure


def _begins(counts: list[int]) -> list[int]:
    return [sum(counts[:number]) for number in range(len(counts))]
