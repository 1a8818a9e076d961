"""The server of warm processes: imports TensorFlow and Keras, and forks a process for each request.

The tests run this file as `python server.py SOCKET`. It imports neither tfdist nor another module of the tests, since
some programs check that they run on stock Keras. It ends when its stdin ends, which is a pipe from the tests.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

# The standby processes of the launcher become a task in the same way.
_STANDBY_PROGRAM = Path(__file__).parents[2] / "tfdist" / "launch" / "standby_program.py"


def serve(path: str) -> dict[str, Any]:
    """Answers requests until stdin ends. Returns only in a forked process, with the request for it."""
    listener = socket.socket(socket.AF_UNIX)
    # Under its name only when it listens, since the tests connect as soon as the file is there.
    listener.bind(f"{path}-new")
    listener.listen(64)
    os.rename(f"{path}-new", path)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                os._exit(0)
            if key.fileobj is listener:
                asker, _ = listener.accept()
                request, files = _receive(asker)
                pid = os.fork()
                if pid == 0:
                    # Objects that closed their files later would close files of the program.
                    for one in list(selector.get_map().values()):
                        if one.data is not None:
                            os.close(one.fd)
                            one.data[1].close()
                    for opened in (asker, listener, selector):
                        opened.close()
                    _become(request, files)
                    return request
                for file in files:
                    os.close(file)
                asker.sendall(pid.to_bytes(4, "little"))
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asker))
            else:
                _report(*key.data)
                selector.unregister(key.fileobj)
                os.close(key.fd)


def _receive(asker: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns a request and the files that became stdin, stdout and stderr."""
    size = array.array("i", [0] * 3)
    text, ancillary, *_ = asker.recvmsg(1 << 20, socket.CMSG_SPACE(len(size) * size.itemsize))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data)
    while not text.endswith(b"\n"):
        text += asker.recv(1 << 20)
    return json.loads(text), list(files)


def _report(pid: int, asker: socket.socket) -> None:
    """Tells the test how a process has ended."""
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        asker.sendall(status.to_bytes(4, "little"))
    asker.close()


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Gives a forked process the session, files, folder and environment variables of a request."""
    if request["own_session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    for name in set(os.environ) - set(request["env"]):
        del os.environ[name]
    os.environ.update(request["env"])
    # Python has opened them for the files of the server.
    for stream in (sys.stdout, sys.stderr):
        unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
        stream.reconfigure(line_buffering=stream.isatty() or stream is sys.stderr, write_through=unbuffered)
    sys.path[1:1] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    tempfile.tempdir = None


def _standby_program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("standby_program", _STANDBY_PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Serves; a forked process runs its program."""
    tensorflow = importlib.import_module("tensorflow")
    # This attribute imports the Keras that TF_USE_LEGACY_KERAS chooses.
    _ = tensorflow.keras.layers
    program = _standby_program()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Collections in the forked processes do not copy the pages of what was imported.
    gc.collect()
    gc.freeze()
    command = serve(sys.argv[1])["command"]
    program.set_path(command)
    program.run(command)


if __name__ == "__main__":
    main()
