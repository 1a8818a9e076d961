"""Every worker has to load weights, as docs/from_horovod.md says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np

from tests.migration.test_migration import page
from tests.processes import Finished, launch, run

PROGRAM = str(Path(__file__).with_name("loading_program.py"))
DEADLINE_SECONDS = 150.0


def weights(ended: Finished) -> list[np.ndarray]:
    assert ended.code == 0
    return [np.array(json.loads(text)) for text in re.findall(r"WEIGHTS (\[[^]]*\])", ended.text)]


def on_two_workers(who: str, folder: Path) -> Finished:
    words = ("--workers", "2", "--show", "all", "--", PROGRAM, who)
    return launch(*words, cwd=folder, deadline_seconds=DEADLINE_SECONDS)


def test_weights_that_all_workers_load_are_trained_as_on_one_device(tmp_path: Path) -> None:
    (one,) = weights(run([sys.executable, PROGRAM, "none"], cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS))
    both = weights(on_two_workers("all", tmp_path))
    assert len(both) == 2
    for each in both:
        np.testing.assert_allclose(each, one, rtol=1e-10)


def test_weights_that_the_chief_alone_loads_are_refused(tmp_path: Path) -> None:
    assert "If the chief alone sets weights, `fit` refuses to train" in page("from_horovod.md")
    ended = on_two_workers("chief", tmp_path)
    assert ended.code == 1
    assert "worker 1 has other values of the variable " in ended.text
