"""StallWatch and Watch in one process: what may take long, a blocked pipeline, and the global interpreter lock."""

from __future__ import annotations

from tests.watch.workers import PROGRAM, workers
from tfdist.cluster.exit_codes import RESTART_CODE


def test_only_the_blocked_pipeline_is_a_stall(tmp_path):
    with workers(tmp_path, ["alone"], program=PROGRAM.with_name("one_process.py")) as (alone,):
        code = alone.end()
    before, _, after = alone.text().partition("BEGIN blocked_data")
    assert "BEGIN a_loop_of_ones_own" in before
    assert "stall:" not in before
    assert "Python stacks" not in before
    assert code == RESTART_CODE
    assert "worker 0 waits for its own data" in after
    assert "a thread of the pipeline is at one_process.py:" in after
    assert "in rows\n" in after.partition("Python stacks")[2]
    assert "the job ends with exit code 75, because the training has stalled because of worker 0" in after


def test_a_breakpoint_is_no_stall(children):
    ended = children.run(
        """
        import io, pdb, threading, time
        from tfdist import create_strategy
        from tfdist.watch import Watch, WatchOptions

        class Person(io.StringIO):
            def readline(self, *args):
                time.sleep(6)
                return "continue\\n"

        with Watch(create_strategy("one_device"), WatchOptions(floor_seconds=1.0, deadline_seconds=2.0)) as watch:
            for _ in range(10):
                time.sleep(0.1)
                watch.step()
            pdb.Pdb(stdin=Person(), stdout=io.StringIO()).set_trace()
            time.sleep(0.1)
        print("ENDED")
        """
    )
    assert (ended.code, ended.out) == (0, "ENDED\n")
    assert "stall" not in ended.err


def test_a_phase_without_limit_writes_no_stacks(children):
    ended = children.run(
        """
        import time
        from tfdist import create_strategy
        from tfdist.watch import Watch, WatchOptions

        options = WatchOptions(floor_seconds=1.0, saving_seconds=float("inf"), deadline_seconds=None)
        with Watch(create_strategy("one_device"), options) as watch:
            for _ in range(10):
                time.sleep(0.1)
                watch.step()
            with watch.phase("saving"):
                time.sleep(7)
        print("ENDED")
        """
    )
    assert ended.out == "ENDED\n"
    assert "Timeout" not in ended.err


def test_a_process_that_is_kept_from_running_for_some_seconds_has_not_stalled(children):
    ended = children.run(
        """
        import ctypes, time
        from tfdist import create_strategy
        from tfdist.watch import Watch, WatchOptions

        with Watch(create_strategy("one_device"), WatchOptions(floor_seconds=2.5, deadline_seconds=1.0)) as watch:
            for _ in range(10):
                time.sleep(0.1)
                watch.step()
            # Holds the interpreter lock, as a machine that stands still holds the whole process.
            ctypes.PyDLL(None).sleep(3)
            time.sleep(1)
        print("ENDED")
        """
    )
    assert (ended.code, ended.out) == (0, "ENDED\n")
    assert "stall" not in ended.err


def test_the_stack_is_written_even_while_native_code_holds_the_interpreter_lock(children):
    ended = children.run(
        """
        import ctypes, time
        from tfdist import create_strategy
        from tfdist.watch import Watch, WatchOptions

        def hold_the_lock():
            # PyDLL, unlike CDLL, holds the lock during the call.
            ctypes.PyDLL(None).sleep(9)

        with Watch(create_strategy("one_device"), WatchOptions(floor_seconds=1.0)) as watch:
            for _ in range(10):
                time.sleep(0.1)
                watch.step()
            hold_the_lock()
            time.sleep(1)
        print("ENDED")
        """
    )
    assert ended.out == "ENDED\n"
    native, _, later = ended.err.partition("it has not run for")
    assert "Timeout (0:00:05)!" in native
    assert "in hold_the_lock" in native
    assert "native code held the global interpreter lock" in later
