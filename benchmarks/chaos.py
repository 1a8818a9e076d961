"""Makes random faults at random moments of real runs, and checks what each of them leaves.

The faults are on three levels. `writer`: processes that write snapshots, without TensorFlow. `launcher`: plain Python
programs under `tfdist launch`. `training`: trainings with AutoResume under `tfdist launch`, and in network namespaces
where root and iproute2 exist. Of ten faults, seven are of writers, two of launchers, and one of trainings. The same
seed makes the same faults.

    python benchmarks/chaos.py --faults 1000 --seed 1
    python benchmarks/chaos.py --faults 100 --seed 1 --level writer --level launcher
    python benchmarks/chaos.py --seed 1 --only launcher:17

After each fault: the run went on or ended by itself, with the right result or a clear message; no process is left, no
torn snapshot was loaded, and no file is left that nobody removes. The exit code is 1 if any check failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The tests and the package of this checkout, whatever is installed.
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.chaos_faults import launcher, training, writer  # noqa: E402
from benchmarks.chaos_faults.fault import Fault, Found, Outcome, Trouble, draw  # noqa: E402

LEVELS = {"writer": writer, "launcher": launcher, "training": training}
SHARES = {"writer": 7, "launcher": 2, "training": 1}


def shared_out(faults: int, levels: Sequence[str]) -> dict[str, int]:
    """Returns the number of faults of each level.

    Example:
        >>> shared_out(1000, ["writer", "launcher", "training"])
        {'writer': 700, 'launcher': 200, 'training': 100}
        >>> shared_out(10, ["launcher"])
        {'launcher': 10}
    """
    total, given = sum(SHARES[level] for level in levels), {}
    for level in levels[1:]:
        given[level] = faults * SHARES[level] // total
    return {levels[0]: faults - sum(given.values()), **given}


def faults_of(options: argparse.Namespace) -> list[Fault]:
    """Returns the faults that the command line asks for."""
    if options.only:
        numbers = [name.partition(":") for name in options.only]
        return [draw(level, int(number), options.seed, LEVELS[level].KINDS) for level, _, number in numbers]
    counts = shared_out(options.faults, [level for level in LEVELS if level in (options.level or LEVELS)])
    return [
        draw(level, number, options.seed, LEVELS[level].KINDS)
        for level, count in counts.items()
        for number in range(count)
    ]


def make(fault: Fault, folder: Path) -> Outcome:
    """Makes a fault in a new folder, which is removed if all is well."""
    place, begun = folder / f"{fault.level}-{fault.number}", time.monotonic()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        found = LEVELS[fault.level].run(fault, place)
    except Exception:
        found = Found()
        found.add(Trouble.OTHER, f"this program failed: {traceback.format_exc()}")
    if not found.troubles:
        shutil.rmtree(place)
    return Outcome(fault=fault, found=found, seconds=time.monotonic() - begun, folder=place)


def as_json(outcome: Outcome) -> str:
    """Returns an outcome as a line of JSON."""
    fault, found = outcome.fault, outcome.found
    troubles = [{"what": trouble.value, "text": text} for trouble, text in found.troubles]
    values = {"seconds": round(outcome.seconds, 3), "recovery_seconds": found.recovery_seconds, "end": found.end}
    return json.dumps({**vars(fault), "moment": round(fault.moment, 4), **values, "troubles": troubles})


def table(outcomes: Sequence[Outcome]) -> Table:
    """Returns the table of all faults by level and kind."""
    result = Table()
    for name in ("level", "kind"):
        result.add_column(name, no_wrap=True)
    for name in ("faults", "ended well", *(trouble.value for trouble in Trouble)):
        result.add_column(name, justify="right")
    groups: dict[tuple[str, str], list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        groups[outcome.fault.level, outcome.fault.kind].append(outcome)
    rows = [*groups.items(), (("all", ""), list(outcomes))]
    for (level, kind), members in rows:
        troubles = [{trouble for trouble, _ in member.found.troubles} for member in members]
        counts = [sum(trouble in found for found in troubles) for trouble in Trouble]
        result.add_row(level, kind, *map(str, [len(members), sum(not found for found in troubles), *counts]))
    return result


def recovery(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns a line for each level about the time from SIGKILL to the next new step."""
    lines = []
    for level in LEVELS:
        seconds = [
            outcome.found.recovery_seconds
            for outcome in outcomes
            if outcome.fault.level == level and outcome.found.recovery_seconds is not None
        ]
        if seconds:
            lines.append(
                f"{level}: from SIGKILL to the next new step: median {statistics.median(seconds):.1f} s, "
                f"worst {max(seconds):.1f} s, of {len(seconds)}"
            )
    return lines


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--faults", type=int, default=100, metavar="N", help="number of faults (default: 100)")
    result.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the faults (default: 0)")
    result.add_argument("--level", action="append", choices=tuple(LEVELS), help="only this level; may be repeated")
    result.add_argument("--only", action="append", metavar="LEVEL:NUMBER", help="only this fault; may be repeated")
    result.add_argument("--output", type=Path, metavar="FILE", help="JSON lines file of all faults")
    result.add_argument("--folder", type=Path, metavar="DIR", help="keep the files of failed faults here")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the faults and returns the exit code."""
    options = parser().parse_args(arguments)
    for name in options.only or ():
        level, _, number = name.partition(":")
        if level not in LEVELS or not number.isdigit():
            parser().error(f"expected --only LEVEL:NUMBER with a level of {', '.join(LEVELS)}, received {name!r}.")
    if options.faults < 1:
        parser().error(f"expected --faults to be at least 1, received {options.faults}.")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tfdist-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    console, outcomes, faults = Console(width=None if sys.stdout.isatty() else 120), [], faults_of(options)
    for number, fault in enumerate(faults):
        outcome = make(fault, folder)
        outcomes.append(outcome)
        if options.output:
            with options.output.open("a" if number else "w") as file:
                file.write(as_json(outcome) + "\n")
        if outcome.found.troubles or fault.level != "writer":
            console.print(
                f"{number + 1}/{len(faults)} {fault.name} {fault.kind}, {fault.where} ({fault.setup}) at "
                f"{fault.moment:.2f}: {outcome.found.end} ({outcome.seconds:.1f} s)",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        for trouble, text in outcome.found.troubles:
            console.print(f"  FAILED, {trouble.value}: {text}", markup=False, highlight=False, soft_wrap=True)
        if outcome.found.troubles:
            again = f"python benchmarks/chaos.py --seed {options.seed} --only {fault.name}"
            console.print(f"  files in {outcome.folder}; again: {again}", markup=False, highlight=False, soft_wrap=True)
    console.print(table(outcomes))
    for line in recovery(outcomes):
        console.print(line, highlight=False)
    failed = sum(bool(outcome.found.troubles) for outcome in outcomes)
    if not failed and not options.folder:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(f"{len(outcomes)} faults, {failed} failed", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
