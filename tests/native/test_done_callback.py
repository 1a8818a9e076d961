"""Canary: TensorFlow passes the callback of an asynchronous kernel as native/cpp/tensorflow_ops.cc expects it.

TensorFlow's C API (TF_NewAsyncKernelBuilder in tensorflow/c/kernels.cc) calls an asynchronous kernel with the address
of a std::function on its stack, which is gone when the kernel has returned. The kernel TfdistWait copies the function.
A release of TensorFlow that passes something else needs another kernel, and these tests fail with it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tensorflow as tf

from tests.processes import run

PROGRAM = Path(__file__).with_name("done_callback_program.py")


def test_thousands_of_waits_that_end_on_another_thread_are_right(tmp_path: Path, with_native: dict[str, str]) -> None:
    ended = run([sys.executable, str(PROGRAM)], cwd=tmp_path, deadline_seconds=90.0, env=with_native)
    assert ended.code == 0, (
        f"expected the waits of tfdist-native to end, received the exit code {ended.code} with TensorFlow "
        f"{tf.__version__}; compare tensorflow/c/kernels.cc with RunWait in native/cpp/tensorflow_ops.cc"
    )
    assert "4000 waits right" in ended.text


def test_the_callback_of_an_asynchronous_kernel_is_a_std_function_without_arguments() -> None:
    header = (Path(tf.sysconfig.get_include()) / "tensorflow/core/framework/op_kernel.h").read_text()
    assert re.search(r"typedef std::function<void\(\)> DoneCallback;", header), (
        f"expected DoneCallback of TensorFlow {tf.__version__} to be a std::function<void()>, received another type; "
        "change the type Done in native/cpp/tensorflow_ops.cc"
    )
