"""`tfdist doctor` in clusters of plain processes on this machine, healthy and with planted faults."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import sys
import threading
import time

import pytest

from tests.doctor.clusters import DEADLINE_SECONDS, Cluster, held_ports, lines
from tests.processes import finish, launch

# The time limit of runs in which a task is missing. The others meet within 70 % of it, also on a busy machine.
MISSING_SECONDS = "15"
# The first bytes of TensorFlow's server: an empty SETTINGS frame of HTTP/2 (RFC 9113 section 3.4).
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def local(*ports):
    return [f"localhost:{port}" for port in ports]


@contextlib.contextmanager
def server(port, first_bytes):
    """Listens on a port, and sends some bytes to everyone who connects."""
    stopped = threading.Event()

    def serve(listening):
        kept = []
        while not stopped.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                connection.sendall(first_bytes)
                if first_bytes.endswith(b"\n"):
                    connection.shutdown(socket.SHUT_WR)
                kept.append(connection)
        for connection in kept:
            connection.close()

    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(0.1)
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield
        stopped.set()
        thread.join(DEADLINE_SECONDS)


# ---- a healthy cluster ----


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A cluster with every job, the results of its tasks, and the shared directory afterwards."""
    folder = tmp_path_factory.mktemp("healthy")
    (folder / "shared").mkdir()
    with held_ports(5) as ports:
        jobs = dict(zip(("chief", "ps", "evaluator"), ([address] for address in local(*ports)), strict=False))
        jobs["worker"] = local(*ports[3:])
        with Cluster(folder, jobs) as cluster:
            for job, addresses in jobs.items():
                for index in range(len(addresses)):
                    cluster.start(
                        job, index, "--directory", "shared", "--json" if job == "chief" else "--timeout-seconds=60"
                    )
            yield cluster.finish(), folder


def test_the_chief_of_a_healthy_cluster_reports_a_pass_of_every_check(healthy):
    chief = json.loads(healthy[0][0].text)
    verdicts = {finding["check"]: finding["verdict"] for finding in chief["findings"] if finding["check"] != "disk"}
    machine = {name: verdicts.pop(name) for name in ("memory", "/dev/shm", "threads", "directory")}
    assert verdicts == dict.fromkeys(
        ("TF_CONFIG", "index", "port", "names", "reach", "clock", "versions", "GPU"), "pass"
    )
    assert set(machine.values()) <= {"pass", "warn"}
    assert sorted(chief["tasks"]) == ["chief 0", "evaluator 0", "ps 0", "worker 0", "worker 1"]
    assert (chief["task"], chief["exit_code"]) == ("chief 0", 0)


def test_every_task_of_a_healthy_cluster_ends_with_0_and_only_the_chief_prints(healthy):
    assert [(task.code, bool(task.text)) for task in healthy[0]] == [(0, True)] + [(0, False)] * 4


def test_every_task_sees_the_files_of_all_others_and_the_renames_of_the_chief(healthy):
    chief = json.loads(healthy[0][0].text)
    texts = {finding["tasks"][0]: finding["text"] for finding in chief["findings"] if finding["check"] == "directory"}
    assert set(texts) == {"chief 0", "ps 0", "worker 0", "worker 1", "evaluator 0"}
    # The disk of a busy machine may be slow.
    good = f"{healthy[1]}/shared is shared; renames are atomic, locks and fsync work"
    assert {text for text in texts.values() if "fsync of 1 MiB" not in text} <= {good}


def test_no_file_stays_in_the_shared_directory(healthy):
    assert list((healthy[1] / "shared").iterdir()) == []


def test_it_runs_under_the_launcher(tmp_path):
    command = (sys.executable, "-m", "tfdist", "doctor")
    done = launch("--workers", "2", "--", *command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert done.code == 0
    assert "[worker 0] tfdist doctor: 2 tasks: " in done.text
    assert "[worker 1]" not in done.text


# ---- differences between tasks that all come ----


@pytest.fixture(scope="module")
def different(tmp_path_factory):
    """Worker 1 has another TF_CONFIG and directory, and worker 2 another version, clock, disk and threads."""
    folder = tmp_path_factory.mktemp("different")
    (folder / "shared").mkdir()
    (folder / "local").mkdir()
    planted = (
        'versions=lambda: {**versions.gather(), "tfdist": "0.0.1"}, '
        "clock=lambda: time.time() - 90, "
        'rooms=lambda path: (Room(path="/small", free=1 << 20),), '
        'threads=lambda: Threads(cpus=(0, 1), settings={"TF_NUM_INTRAOP_THREADS": "64"})'
    )
    with held_ports(3) as ports:
        jobs = {"worker": local(*ports)}
        others = {"worker": [f"127.0.0.1:{ports[0]}", *local(*ports[1:])]}
        with Cluster(folder, jobs) as cluster:
            cluster.start("worker", 0, "--directory", "shared")
            cluster.start("worker", 1, "--directory", "local", jobs=others)
            cluster.start("worker", 2, "--directory", "shared", sources=planted)
            yield cluster.finish()


def test_the_chief_names_every_difference(different):
    chief = different[0].text
    failures = {(check, task): text for check, task, text in lines(chief, "fail")}
    assert re.match(r"lists worker 0 at 127\.0\.0\.1:\d+, but worker 0's TF_CONFIG", failures["TF_CONFIG", "worker 1"])
    assert re.match(r"has tfdist 0\.0\.1, but worker 0 has tfdist \d", failures["versions", "worker 2"])
    assert "/local is not shared: the files of worker 0, worker 2 are not there" in failures["directory", "worker 1"]
    assert "/shared is not shared: the files of worker 1 are not there" in failures["directory", "worker 0, worker 2"]
    warnings = {(check, task): text for check, task, text in lines(chief, "warn")}
    assert re.match(r"its clock is (89\.9|90\.0|90\.1) s behind that of worker 0", warnings["clock", "worker 2"])
    assert "64 threads on 2 CPUs" in warnings["threads", "worker 2"]
    assert "1 MiB are free in /small" in failures["disk", "worker 2"]
    assert set(failures) == {
        ("TF_CONFIG", "worker 1"),
        ("disk", "worker 2"),
        ("versions", "worker 2"),
        ("directory", "worker 1"),
        ("directory", "worker 0, worker 2"),
    }


def test_other_tasks_print_their_own_failures_only(different):
    assert {(check, task) for check, task, _ in lines(different[1].text, "fail")} == {
        ("TF_CONFIG", "worker 1"),
        ("directory", "worker 1"),
    }
    assert {(check, task) for check, task, _ in lines(different[2].text, "fail")} == {
        ("versions", "worker 2"),
        ("directory", "worker 2"),
        ("disk", "worker 2"),
    }
    assert "pass" not in different[1].text


def test_every_task_with_a_failure_ends_with_1(different):
    assert [task.code for task in different] == [1, 1, 1]


# ---- tasks that do not come ----


@pytest.fixture(scope="module")
def missing(tmp_path_factory):
    """Seven workers of which two come, and one whose port another program has."""
    with held_ports(6) as ports, contextlib.ExitStack() as stack:
        addresses = [*local(*ports), "no-such-host.invalid:2222"]
        stack.enter_context(server(ports[2], b""))
        stack.enter_context(server(ports[4], SETTINGS))
        stack.enter_context(server(ports[5], b"tfdist worker 5\n"))
        with Cluster(tmp_path_factory.mktemp("missing"), {"worker": addresses}) as cluster:
            for index in range(3):
                cluster.start("worker", index, "--timeout-seconds", MISSING_SECONDS)
            yield cluster.finish(), ports


def test_a_task_that_does_not_come_is_named(missing):
    (chief, *_), ports = missing
    failures = {(check, task): text for check, task, text in lines(chief.text, "fail")}
    assert f"did not come at localhost:{ports[3]}: connection refused" in failures["reach", "worker 3"]
    assert f"did not come at localhost:{ports[4]}: a TensorFlow server answers there" in failures["reach", "worker 4"]
    assert ": a training that waits for its other tasks answers there" in failures["reach", "worker 5"]


def test_a_name_that_does_not_resolve_is_named(missing):
    failures = {(check, task): text for check, task, text in lines(missing[0][0].text, "fail")}
    assert "the name 'no-such-host.invalid' of worker 6 does not resolve" in failures["names", "all 3 tasks"]
    assert "did not come at no-such-host.invalid:2222: name does not resolve" in failures["reach", "worker 6"]


def test_a_port_that_another_program_has_is_named(missing):
    (chief, *_), ports = missing
    failures = {(check, task): text for check, task, text in lines(chief.text, "fail")}
    assert f"worker 2 expected port {ports[2]} to be free" in failures["port", "worker 2"]
    assert "stop the process that holds it" in failures["port", "worker 2"]
    assert "none of 2 tasks reaches it" in failures["reach", "worker 2"]


def test_the_other_checks_are_reported_all_the_same(missing):
    chief = missing[0][0].text
    passed = {check for check, _, _ in lines(chief, "pass")}
    assert {"TF_CONFIG", "index", "clock", "versions"} <= passed
    assert [task.code for task in missing[0]] == [1, 1, 1]


def test_without_the_chief_a_task_prints_its_own_failures(tmp_path):
    with held_ports(2) as ports, Cluster(tmp_path, {"worker": local(*ports)}) as cluster:
        cluster.start("worker", 1, "--timeout-seconds", "4")
        (done,) = cluster.finish()
    assert done.code == 1
    assert [(check, task) for check, task, _ in lines(done.text, "fail")] == [("reach", "worker 0")]
    assert "worker 0, which reports for all tasks, did not come" in done.text


@pytest.fixture(scope="module")
def rivals(tmp_path_factory):
    """Two processes that are worker 0 of two workers."""
    with held_ports(2) as ports, Cluster(tmp_path_factory.mktemp("rivals"), {"worker": local(*ports)}) as cluster:
        for _ in range(2):
            cluster.start("worker", 0, "--timeout-seconds", "30")
        yield sorted(cluster.finish(), key=lambda task: len(task.text))


def test_two_processes_with_the_same_index_are_named_by_the_second_one(rivals):
    failures = {(check, task): text for check, task, text in lines(rivals[0].text, "fail")}
    assert "another process that is worker 0 listens on port" in failures["port", "worker 0"]
    assert "give every process its own task.index" in failures["port", "worker 0"]
    assert rivals[0].code == 1


def test_two_processes_with_the_same_index_are_named_by_the_first_one(rivals):
    failures = {(check, task): text for check, task, text in lines(rivals[1].text, "fail")}
    assert re.match(r"another process \(\d+\) was started as worker 0 at the same", failures["index", "worker 0"])
    assert failures["reach", "worker 1"].startswith("did not come at localhost:")
    assert rivals[1].code == 1


def test_a_task_of_an_earlier_launch_is_not_taken_for_the_task(tmp_path):
    with held_ports(2) as ports, Cluster(tmp_path, {"worker": local(*ports)}) as cluster:
        for index in range(2):
            cluster.start("worker", index, "--timeout-seconds", "8", env={"TFDIST_LAUNCH_ID": f"launch{index}"})
        chief, worker = cluster.finish()
    failures = {(check, task): text for check, task, text in lines(chief.text, "fail")}
    assert failures.keys() == {("reach", "worker 1")}
    assert "a task of another launch answers there: worker 1; end that task" in failures["reach", "worker 1"]
    assert (chief.code, worker.code) == (1, 1)


# ---- interruption ----


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_task_removes_its_files(number, code, tmp_path):
    (tmp_path / "shared").mkdir()
    with held_ports(2) as ports, Cluster(tmp_path, {"worker": local(*ports)}) as cluster:
        cluster.start("worker", 0, "--directory", "shared")
        end = time.monotonic() + DEADLINE_SECONDS
        while not list((tmp_path / "shared").glob("*/renamed")):
            assert time.monotonic() < end and cluster.processes[0].poll() is None
            time.sleep(0.01)
        cluster.processes[0].send_signal(number)
        done = finish(cluster.processes[0], deadline_seconds=DEADLINE_SECONDS)
    assert done.code == code
    assert "Traceback" not in done.text
    assert list((tmp_path / "shared").iterdir()) == []
