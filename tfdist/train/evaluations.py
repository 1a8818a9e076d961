"""The results of the evaluator, in a file with one JSON object a line. The file is the memory of the evaluator."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence

FILE = "evaluations.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of one evaluation.

    Attributes:
        run: name of the run.
        step: number of training steps of the evaluated weights.
        snapshot: name of the snapshot, or of the file, that contained the weights.
        time: when the evaluation ended, in seconds since 1970.
        metrics: the metrics by name; None stands for a number that is not finite.
        left_out: steps of older snapshots that were not evaluated.
    """

    run: str
    step: int
    snapshot: str
    time: float
    metrics: Mapping[str, float | None]
    left_out: tuple[int, ...] = ()

    def line(self) -> str:
        """Returns the evaluation as a line of JSON.

        Example:
            >>> Evaluation(run="4f1c", step=5, snapshot="s", time=1.0, metrics={"loss": 0.5}).line()
            '{"step": 5, "metrics": {"loss": 0.5}, "snapshot": "s", "time": 1.0, "left_out": [], "run": "4f1c"}'
        """
        values = dataclasses.asdict(self)
        return json.dumps({name: values[name] for name in ("step", "metrics", "snapshot", "time", "left_out", "run")})


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Returns metrics that JSON can hold: None stands for a number that is not finite.

    Args:
        metrics: metrics by name.

    Example:
        >>> from tfdist.train.evaluations import finite
        >>> finite({"loss": float("nan"), "accuracy": 0.5})
        {'loss': None, 'accuracy': 0.5}
    """
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def best_of(evaluations: Sequence[Evaluation], metric: str) -> int | None:
    """Returns the index of the first of the best evaluations; None if none has a finite value.

    Args:
        evaluations: the evaluations in their order.
        metric: "loss", of which less is better, or another metric, of which more is better.

    Example:
        >>> from tfdist.train.evaluations import Evaluation, best_of
        >>> metrics = [{"loss": 0.5}, {"loss": 0.3}, {"loss": None}, {"loss": 0.3}]
        >>> made = [Evaluation(run="", step=i, snapshot="", time=0.0, metrics=one) for i, one in enumerate(metrics)]
        >>> best_of(made, "loss")
        1
    """
    sign = 1.0 if metric == "loss" else -1.0
    found = [(sign * value, i) for i, one in enumerate(evaluations) if (value := one.metrics.get(metric)) is not None]
    return min(found)[1] if found else None


class Evaluations:
    """The evaluations in a file.

    Args:
        path: name of the file; its folder is created.

    Example:
        >>> import tempfile
        >>> from tfdist.train.evaluations import Evaluation, Evaluations
        >>> path = tempfile.mkdtemp() + "/evaluations.jsonl"
        >>> Evaluations(path).add(Evaluation(run="4f1c", step=5, snapshot="s", time=1.0, metrics={"loss": 0.5}))
        >>> [one.step for one in Evaluations(path).of_run("4f1c")]
        [5]
    """

    def __init__(self, path: str) -> None:
        self._path = path
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._found = _read(path)

    @property
    def seen(self) -> set[tuple[str, int]]:
        """Run and step of everything that was evaluated or left out."""
        return {(one.run, step) for one in self._found for step in (one.step, *one.left_out)}

    def of_run(self, run: str) -> list[Evaluation]:
        """Returns the evaluations of a run, in the order in which they were made.

        Args:
            run: name of the run.
        """
        return [one for one in self._found if one.run == run]

    def add(self, evaluation: Evaluation) -> None:
        """Adds an evaluation; the line is on the disk when the method returns.

        Args:
            evaluation: the evaluation.
        """
        line = evaluation.line().encode() + b"\n"
        with open(self._path, "ab+") as file:
            # A line that was not completed, by a process that was killed or on a full disk, is ended first.
            if file.tell() and not _ends_with_newline(self._path):
                line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._found.append(evaluation)


def _ends_with_newline(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _read(path: str) -> list[Evaluation]:
    """Returns the evaluations of a file, without lines that are not complete."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            values = json.loads(line)
            found.append(Evaluation(**{**values, "left_out": tuple(values["left_out"])}))
        except (ValueError, TypeError, KeyError):
            continue
    return found
