"""Log lines of dependencies are noise; what a program writes, and what ends a process, is not."""

from __future__ import annotations

import pytest

from tfdist.launch.noise import NoiseFilter, is_noise, split_log_line

INFO = "I0000 00:00:1795257841.957614   31274 cudart_stub.cc:31] Could not find cuda drivers on your machine."
WARNING = "W0000 00:00:1795257882.676926   31522 dataset.cc:997] Input of GeneratorDatasetOp will not be optimized."
ERROR = "E0000 00:00:1795257845.115898   31274 cuda_platform.cc:52] failed call to cuInit: INTERNAL"
PACKAGES = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    "line",
    [
        INFO,
        WARNING,
        ERROR,
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the flags.",
        "2026-11-24 16:30:42.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.",
        "2026-11-24 16:30:42.123456: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable",
        "E1124 16:30:42.123456789    1234 server_chttp2.cc:40] {}",
        f"{PACKAGES}/jax/_src/lib.py:10: DeprecationWarning: `np.bool` is old",
        f"WARNING:tensorflow:From {PACKAGES}/tf_keras/src/losses.py:2976: The name tf.losses is deprecated. Please use",
    ],
)
def test_log_lines_of_dependencies_are_noise(line: str) -> None:
    assert is_noise(line)


@pytest.mark.parametrize(
    "line",
    [
        "F0000 00:00:1795257845.115898   31274 tensor.cc:52] Check failed: dtype() == expected_dtype",
        "2026-11-24 16:30:42.123456: F tensorflow/core/framework/tensor.cc:844] Check failed: dtype()",
        "*** Check failure stack trace: ***",
        "I1124 16:30:42.123456 140213 train.py:12] step 10",
        "W1124 16:30:42.123456 140213 train.py:12] the rate is low",
        f"{PACKAGES}/keras/src/trainers/epoch_iterator.py:107: UserWarning: Your input ran out of data",
        f"{PACKAGES}/numpy/core.py:1: RuntimeWarning: overflow encountered in exp",
        "/home/me/train.py:3: DeprecationWarning: the function `f` is old",
        "WARNING:tensorflow:5 out of the last 5 calls to <function f> triggered tf.function retracing.",
        "I am here",
        "I0000 is a code",
        "WARNING: All log messages",
        "/job:worker/replica:0/task:1",
        "tfdist: strategy one_device",
        "",
    ],
)
def test_other_lines_are_not(line: str) -> None:
    assert not is_noise(line)


def test_further_lines_of_a_message_are_noise_too() -> None:
    noise = NoiseFilter()
    crashed = "The tasks have crashed. Check the task logs for an earlier error, or scheduler events to debug further."
    native = [f"{INFO[:60]} Example stragglers:", "/job:worker/replica:0/task:1", crashed]
    warned = [f"{PACKAGES}/h5py/a.py:5: FutureWarning: old", "  import numpy"]
    renamed = [f"WARNING:tensorflow:From {PACKAGES}/a.py:2: The name x is deprecated", "Instructions for updating:", ""]
    assert noise.without([*native, "one", *warned, "two", *renamed, "three"]) == ["one", "two", "three"]
    assert noise.left_out == 8
    assert noise.without([crashed]) == [crashed]


def test_the_options_of_a_session_are_noise_up_to_the_empty_line() -> None:
    begin = "I0000 00:00:1795541426.990940   10896 eager_service_impl.cc:355] SessionOptions: goo.gle/debugonly  "
    options = ["device_count {", '  key: "CPU"', "  value: 1", "}", "allow_soft_placement: true", ""]
    assert NoiseFilter().without([begin, *options, "step: 3", "}", ""]) == ["step: 3", "}", ""]


def test_the_error_of_a_connection_has_several_lines() -> None:
    lines = [
        ERROR,
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /Heartbeat:",
        ':UNKNOWN:Error received from peer  {grpc_message:"failed to connect to all addresses", grpc_status:14}',
    ]
    assert NoiseFilter().without(lines) == []


def test_what_follows_a_line_of_the_program_is_not_taken_for_a_further_line() -> None:
    lines = [f"{PACKAGES}/h5py/a.py:5: FutureWarning: old", "  import numpy", "loss 0.5", "  an indented line", ""]
    assert NoiseFilter().without(lines) == ["loss 0.5", "  an indented line", ""]


def test_the_lines_of_a_message_may_arrive_one_by_one() -> None:
    noise = NoiseFilter()
    assert noise.without([INFO]) + noise.without(["/job:worker/replica:0/task:1"]) == []


def test_a_log_line_is_split_from_the_bar_behind_which_it_was_written() -> None:
    bar = "1/22 ━━━ 4s 212ms/step"
    assert split_log_line(f"{bar}{WARNING}") == (bar, WARNING)
    assert split_log_line(WARNING) == (WARNING, "")
    assert split_log_line(bar) == (bar, "")
