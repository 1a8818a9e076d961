"""Positions of threads are those in the program of the user, where there is one."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path

import pytest

from tfdist.watch.frames import is_debugged, is_tracing, position_in_pipeline, position_of, runs


def test_the_position_is_in_the_code_of_the_user_and_not_in_the_library_that_it_calls():
    found: queue.Queue[str] = queue.Queue()
    end = threading.Event()

    def waits_in_a_library() -> None:
        found.put("ready")
        end.wait()

    thread = threading.Thread(target=waits_in_a_library, daemon=True)
    thread.start()
    found.get(timeout=60)
    try:
        assert position_of(thread.ident).startswith("test_frames.py:")
        assert position_of(thread.ident).endswith(" in waits_in_a_library")
    finally:
        end.set()
        thread.join()
    assert position_of(thread.ident) == ""


def test_a_call_is_known_by_its_code_while_it_runs():
    own = threading.get_ident()
    code = sys._getframe().f_code

    def inner() -> bool:
        return runs(own, code)

    assert inner()
    assert not runs(own, inner.__code__)


@pytest.mark.parametrize(
    ("file", "function", "stops"),
    [
        ("/usr/lib/python3.11/pdb.py", "interaction", True),
        ("/usr/lib/python3.11/bdb.py", "trace_dispatch", True),
        ("/opt/pycharm/plugins/python/helpers/pydev/pydevd.py", "do_wait_suspend", True),
        ("C:\\pydev\\pydevd.py", "do_wait_suspend", True),
        # With `python -m pdb`, the whole program runs within this function.
        ("/usr/lib/python3.11/bdb.py", "run", False),
        ("/home/me/debugger.py", "interaction", False),
    ],
)
def test_a_stop_in_a_debugger_is_seen(file, function, stops):
    names: dict = {"look": lambda: is_debugged(threading.get_ident())}
    exec(compile(f"def {function}():\n    return look()\n", file, "exec"), names)
    assert names[function]() is stops


def test_a_trace_and_a_generator_of_a_pipeline_are_seen_while_they_run():
    import tensorflow as tf

    own = threading.get_ident()
    seen: list[bool] = []
    positions: list[str] = []

    @tf.function(autograph=False)
    def traced(x: tf.Tensor) -> tf.Tensor:
        seen.append(is_tracing(own))
        return x

    def rows():
        positions.append(position_in_pipeline(own))
        yield 1

    assert not is_tracing(own)
    traced(tf.constant(1.0))
    # In a thread of the pipeline, which is not the one that trains.
    list(tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.int32)).prefetch(1))
    assert seen == [True]
    assert [Path(one.split(":")[0]).name for one in positions] == ["test_frames.py"]
    assert positions[0].endswith(" in rows")
    assert position_in_pipeline(own) == ""
