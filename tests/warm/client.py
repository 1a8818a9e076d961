"""Starts warm processes: the class WarmPopen."""

from __future__ import annotations

import array
import atexit
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

START_SECONDS = 120.0

_SERVER = Path(__file__).with_name("server.py")
# TensorFlow, Keras and Python read these variables when they are imported or start, except those in _READ_LATER.
_READ_AT_IMPORT = ("TF_", "KERAS_", "PYTHON", "CUDA_", "LD_", "MPL")
_READ_LATER = ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PYTHONPATH", "PYTHONUNBUFFERED")
# The socket of a server that a process shares with the test that started it.
_SOCKET = "TFDIST_TESTS_WARM"
_OF_THE_SERVER = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class WarmPopen(subprocess.Popen):
    """A subprocess.Popen whose process begins with TensorFlow and Keras imported.

    The command is `sys.executable FILE ARGS...` or `sys.executable -m MODULE ARGS...`. A process whose environment
    variables would change what an import does, such as TF_USE_LEGACY_KERAS, is started as by subprocess.Popen.
    """

    _connection: socket.socket | None = None

    def _execute_child(self, args: Any, *positional: Any) -> None:
        (executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *pipes_and_ids) = positional
        stdin, _, _, stdout, _, stderr = pipes_and_ids[:6]
        own_session, process_group = pipes_and_ids[-2:]
        env = dict(os.environ) if env is None else env
        special = preexec_fn or pass_fds or shell or process_group != -1 or executable not in (None, args[0])
        if special or not _is_warm(args, env):
            super()._execute_child(args, *positional)
            return
        request = {
            "command": [os.fspath(word) for word in args[1:]],
            "cwd": os.fspath(cwd or os.getcwd()),
            # The process starts its own warm processes from the same server.
            "env": {**env, _SOCKET: _server()},
            "own_session": bool(own_session),
        }
        files = [number if given == -1 else given for number, given in enumerate((stdin, stdout, stderr))]
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server())
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
        text = json.dumps(request).encode() + b"\n"
        sent = self._connection.sendmsg([text], [rights])
        self._connection.sendall(text[sent:])
        self.pid = int.from_bytes(self._connection.recv(4), "little")
        self._child_created = True
        self._close_pipe_fds(*pipes_and_ids[:6])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Asks the server, which is the parent of the process, as os.waitpid asks the kernel."""
        if self._connection is None:
            return super()._try_wait(wait_flags)
        try:
            status = self._connection.recv(4, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        # The connection ends without a status if the server was killed.
        return self.pid, int.from_bytes(status, "little") if status else signal.SIGKILL

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*args, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _is_warm(args: Any, env: Any) -> bool:
    """Returns whether a command starts Python with a file or a module, and with the imports of the server."""
    words = [args] if isinstance(args, (str, bytes)) else [os.fspath(word) for word in args]
    if "site_hook" in env.get("PYTHONPATH", ""):
        return False  # The task of `tfdist launch --adopt` runs a sitecustomize when Python starts.
    if len(words) < 2 or words[0] != sys.executable or (words[1].startswith("-") and words[1] != "-m"):
        return False
    return sys.platform == "linux" and _imported_with(env) == _imported_with({**os.environ, **_OF_THE_SERVER})


def _imported_with(env: Any) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER}


@functools.cache
def _server() -> str:
    """Starts the server of this process when it is first needed, and returns its socket. It ends with this process."""
    if _SOCKET in os.environ:
        return os.environ[_SOCKET]
    folder = tempfile.mkdtemp(prefix="tfdist-warm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path, log = os.path.join(folder, "socket"), Path(folder, "log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(_SERVER), path],
            env={**os.environ, **_OF_THE_SERVER},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end = time.monotonic() + START_SECONDS
    while not os.path.exists(path):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"expected a server of warm processes, received:\n{log.read_text()}")
        time.sleep(0.02)
    _running.append(process)
    return path


# Its stdin stays open as long as this process runs.
_running: list[subprocess.Popen[bytes]] = []
