"""Information messages of TensorFlow are only written to the log files, unless the user asks for them."""

from __future__ import annotations

import io

from tfdist.launch.output import Console
from tfdist.launch.tensorflow_info import without_tensorflow_info

INFO = "I0000 00:00:1795257841.957614   31274 cudart_stub.cc:31] Could not find cuda drivers on your machine."
WARNING = "W0000 00:00:1795257882.676926   31522 dataset.cc:997] Input will not be optimized."
ERROR = "E0000 00:00:1795257845.115898   31274 cuda_platform.cc:52] failed call to cuInit"


def test_information_is_dropped_and_warnings_and_errors_stay() -> None:
    assert without_tensorflow_info([INFO, WARNING, ERROR, "Epoch 1/3"]) == [WARNING, ERROR, "Epoch 1/3"]


def test_a_similar_line_of_the_program_stays() -> None:
    lines = ["I am here", "I0000 is a code", "WARNING: All log messages"]
    assert without_tensorflow_info(lines) == lines


def test_the_console_shows_information_only_when_asked_for() -> None:
    shown = {}
    for show_info in (False, True):
        stream = io.StringIO()
        Console.on(stream, {}, show_info=show_info).show("worker 0", 0, [INFO, "done"])
        shown[show_info] = stream.getvalue()
    assert shown == {False: "[worker 0] done\n", True: f"[worker 0] {INFO}\n[worker 0] done\n"}
