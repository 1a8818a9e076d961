"""start_deadline: a start of TensorFlow that takes too long ends the process, and the tasks that are late are named."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

START = """
import contextlib, ctypes, os, socket, threading, time
from tfdist.cluster import ClusterConfig
from tfdist.cluster.start_watchdog import start_watchdog
from tfdist.strategies.start_deadline import start_deadline

servers = []

def cluster(peer):
    return ClusterConfig(jobs={"worker": ["127.0.0.1:2", peer]}, task_type="worker")

def serve(data):
    server = socket.create_server(("127.0.0.1", 0))
    def reply():
        while data:
            with server.accept()[0] as connection:
                connection.sendall(data)
    threading.Thread(target=reply, daemon=True).start()
    servers.append(server)
    return "127.0.0.1:%d" % server.getsockname()[1]
"""

PROGRAMS = {
    "refused": """
with start_deadline(cluster("127.0.0.1:1"), timeout_seconds=60):
    print("the first was in time", flush=True)
with start_deadline(cluster("127.0.0.1:1"), timeout_seconds=1):
    time.sleep(1000)
""",
    "all answer": """
with start_deadline(cluster(serve(b"settings")), timeout_seconds=1):
    time.sleep(1000)
""",
    "stopped": """
with start_deadline(cluster(serve(b"")), timeout_seconds=1):
    time.sleep(1000)
""",
    # PyDLL, unlike CDLL, keeps the global interpreter lock during the call, as TFE_EnableCollectiveOps does.
    "lock held": """
with start_deadline(cluster("127.0.0.1:1"), timeout_seconds=1):
    ctypes.PyDLL(None).sleep(1000)
""",
    "lock held, signals ignored": """
import signal
signal.signal(signal.SIGTERM, lambda *args: None)
# Another thread gets the signal, so that it does not end the sleep.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with start_deadline(cluster("127.0.0.1:1"), timeout_seconds=1):
    ctypes.PyDLL(None).sleep(1000)
""",
    "in time": """
before = threading.active_count(), sorted(os.listdir("/proc/self/fd"))
for _ in range(3):
    with contextlib.suppress(KeyError), start_deadline(cluster("127.0.0.1:1"), timeout_seconds=1):
        raise KeyError
time.sleep(2)
print(before == (threading.active_count(), sorted(os.listdir("/proc/self/fd"))))
""",
    "dies": """
watchdog = start_watchdog(cluster("127.0.0.1:1"), timeout_seconds=100)
print(watchdog.pid, flush=True)
os._exit(0)
""",
    "no process": """
import subprocess
def fail(*args, **kwargs):
    raise PermissionError(1, "not allowed")
subprocess.Popen = fail
with start_deadline(cluster("127.0.0.1:1"), timeout_seconds=1):
    print("started", flush=True)
""",
}


@pytest.fixture(scope="module")
def ended(module_children):
    starting = threading.Lock()

    def run(program):
        with starting:
            child = module_children.start(START + program)
        return child.end()

    # Two at once, since each of them imports TensorFlow.
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PROGRAMS, pool.map(run, PROGRAMS.values()), strict=True))


def log(finished):
    return [line for line in finished.err.splitlines() if line.startswith("tfdist:")]


def sentence(reason, address=None):
    what = f"worker 1 at {address or '127.0.0.1:1'} did not answer in 1 s ({reason})"
    return (
        f"tfdist: worker 0 expected TensorFlow to start within 1 s: {what}; start the missing task, or give more time "
        "with startup_timeout_seconds."
    )


def test_a_start_that_takes_too_long_ends_the_process_and_names_the_silent_peer(ended):
    finished = ended["refused"]
    assert (finished.code, finished.out) == (70, "the first was in time\n")
    assert log(finished) == [sentence("connection refused")]


def test_a_start_that_takes_too_long_although_every_task_answers_points_to_the_logs(ended):
    finished = ended["all answer"]
    assert finished.code == 70
    assert "every task answers, but one of them has not joined; look at the logs of the other tasks" in finished.err


def test_a_stopped_peer_is_named_although_its_kernel_accepts_connections(ended):
    finished = ended["stopped"]
    assert finished.code == 70
    assert ") did not answer" not in finished.err
    assert "did not answer in 1 s (the process accepts connections but does not reply); start" in finished.err


@pytest.mark.parametrize(
    ("name", "signum"), [("lock held", signal.SIGTERM), ("lock held, signals ignored", signal.SIGKILL)]
)
def test_a_start_that_holds_the_interpreter_lock_is_ended_from_outside(ended, name, signum):
    finished = ended[name]
    assert finished.code == -signum
    assert log(finished) == [sentence("connection refused")]


def test_a_start_in_time_leaves_no_thread_process_or_file_behind(ended):
    finished = ended["in time"]
    assert (finished.code, finished.out, log(finished)) == (0, "True\n", [])


def test_the_watchdog_ends_with_the_process_that_it_watches(ended):
    pid = int(ended["dies"].out)
    end = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            # An orphan that nobody waits for stays as a zombie.
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_start_without_a_watchdog_goes_on_and_says_so(ended):
    finished = ended["no process"]
    assert (finished.code, finished.out) == (0, "started\n")
    assert log(finished) == [
        "tfdist: TensorFlow's start has no deadline, since no process can be started: [Errno 1] not allowed"
    ]
