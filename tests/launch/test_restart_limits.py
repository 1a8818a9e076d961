"""Time limits of runs with restarts, and what counts as progress between them."""

from __future__ import annotations

from .conftest import Launcher
from .test_restarting import RECORDS


def test_the_timeout_is_that_of_all_attempts_together(launcher: Launcher) -> None:
    program = RECORDS + "progress.record(attempt)\ntime.sleep(0.2)\nsys.exit(3)"
    done = launcher.run("--max-restarts", "1000", "--timeout-seconds", "1.5", program=program)
    assert done.code == 124
    assert "the timeout of 1.5 s has passed" in done.err


def test_the_timeout_ends_the_delay_before_a_restart(launcher: Launcher) -> None:
    done = launcher.run("--max-restarts", "1000", "--timeout-seconds", "3", program=RECORDS + "say(name)\nsys.exit(75)")
    assert done.code == 124
    assert "the timeout of 3 s has passed before the tasks started again\n" in done.err
    # Delays of 0, 1, 2 and 4 s: the third restart would come after the timeout.
    assert not (launcher.place / "worker-0-4").exists()


def test_an_evaluator_that_fails_beside_a_training_with_steps_is_restarted(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
if job == "worker":
    progress.record(10 + attempt)
    say(name)
    forever() if attempt < 4 else sys.exit(0)
wait_for(f"worker-0-{attempt}")
sys.exit(9 if attempt < 4 else 0)
"""
    )
    done = launcher.run("--evaluator", "--max-restarts", "4", program=program)
    assert done.code == 0
    assert "tfdist launch: evaluator 0 failed (exit code 9, at step 11), restart 1 of 4\n" in done.err
    assert "tfdist launch: evaluator 0 failed (exit code 9, at step 14), restart 4 of 4\n" in done.err
