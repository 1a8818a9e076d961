"""Runs that go on with another number of workers."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.launch.cli import main
from tfdist.launch.scale import Elastic, ScaleRequests, request_workers

from .conftest import Launcher, wait_until

# Each task says its name and attempt, and saves its state when it is asked to end.
TRAINS = """
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.cluster.launched import launched
from tfdist.cluster.progress import ProgressFile
attempt = launched().attempt
progress = ProgressFile(launched().progress_file)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(RESTART_CODE))
print("threads", os.environ.get("OMP_NUM_THREADS"), "workers", len(config["cluster"]["worker"]), flush=True)
say(f"{job}-{index}-{attempt}")
"""


@contextlib.contextmanager
def consecutive_ports() -> Iterator[int]:
    """Gives the first of two ports that follow each other and that nobody uses."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("", port + 1))
                yield port
                return


def workers_of(err: str) -> list[int]:
    """Returns the number of workers of each attempt, in their order."""
    return [int(found) for found in re.findall(r"^tfdist launch: (\d+) workers? on localhost ", err, re.MULTILINE)]


def test_a_worker_whose_restarts_are_used_up_is_left_out(launcher: Launcher) -> None:
    program = (
        TRAINS
        + """
progress.record(attempt)
if index == 1:
    sys.exit(3)
if len(config["cluster"]["worker"]) == 2:
    forever()
"""
    )
    done = launcher.run("--workers", "2", "--elastic", "1:2", "--max-restarts", "1", program=program)
    assert done.code == 0
    assert workers_of(done.err) == [2, 2, 1]
    assert (
        "tfdist launch: worker 1 failed (exit code 3, at step 2), the limit of 1 restart is used up: 2 -> 1 worker\n"
        in done.err
    )
    assert "tfdist launch: 2 restarts:\n" in done.err
    assert launcher.alive() == {}


def test_without_restarts_the_first_crash_leaves_a_worker_out(launcher: Launcher) -> None:
    program = TRAINS + "sys.exit(3 if index == 2 else 0)"
    done = launcher.run("--workers", "3", "--elastic", "2:3", program=program)
    assert done.code == 0
    assert workers_of(done.err) == [3, 2]


def test_there_are_never_fewer_workers_than_the_least_number(launcher: Launcher) -> None:
    program = TRAINS + "if index: forever()\nsys.exit(3)"
    done = launcher.run("--workers", "3", "--elastic", "2:3", program=program)
    assert done.code == 3
    assert workers_of(done.err) == [3, 2]
    assert "worker 0 failed first: exit code 3, " in done.err


def test_a_failure_at_one_step_again_and_again_ends_an_elastic_run_too(launcher: Launcher) -> None:
    program = TRAINS + "progress.record(811)\nif not index: forever()\nsys.exit(3)"
    done = launcher.run("--workers", "2", "--elastic", "1:2", "--max-restarts", "9", program=program)
    assert done.code == 3
    assert workers_of(done.err) == [2, 2, 2]
    assert "not restarted: step 812 failed three times on worker 1\n" in done.err


@pytest.mark.parametrize("ports", [(), ("--port-base", "{port}")], ids=["free ports", "fixed ports"])
def test_the_number_of_workers_changes_on_request(launcher: Launcher, ports: tuple[str, ...]) -> None:
    program = (
        TRAINS
        + """
if len(config["cluster"]["worker"]) == 2 and attempt == 2:
    sys.exit(0)
forever()
"""
    )
    with consecutive_ports() as port:
        ports = tuple(text.format(port=port) for text in ports)
    options = ("--workers", "2", "--elastic", "1:2", "--grace-seconds", "25", "--log-dir", "logs")
    started = launcher.start(*options, *ports, "--", str(launcher.write(program)))
    started.wait_for("worker-0-0"), started.wait_for("worker-1-0")
    request = launcher.run("--scale-to", "1", "--log-dir", "logs")
    assert (request.code, request.err) == (0, "tfdist launch: the run goes on with 1 worker\n")
    started.wait_for("worker-0-1")
    assert launcher.run("--scale-to=2", "--log-dir", "logs").code == 0
    done = started.end()
    assert done.code == 0
    assert workers_of(done.err) == [2, 1, 2]
    assert "tfdist launch: --scale-to 1 was asked for: 2 -> 1 worker\n" in done.err
    assert "tfdist launch: --scale-to 2 was asked for: 1 -> 2 workers\n" in done.err
    assert "tfdist launch: 2 restarts:\n" in done.err
    assert {path.suffix for path in (launcher.place / "logs").iterdir()} == {".log"}
    assert launcher.alive() == {}


def test_a_request_for_the_present_number_changes_nothing(launcher: Launcher) -> None:
    options = ("--workers", "2", "--elastic", "1:2", "--log-dir", "logs")
    started = launcher.start(*options, "--", str(launcher.write(TRAINS + "wait_for('go on')")))
    started.wait_for("worker-1-0")
    assert launcher.run("--scale-to", "2", "--log-dir", "logs").code == 0
    (launcher.place / "go on").touch()
    done = started.end()
    assert done.code == 0
    assert "--scale-to 2 was asked for, which is the present number of workers\n" in done.err
    assert workers_of(done.err) == [2]


def test_tasks_that_end_with_0_when_they_are_asked_to_save_start_again(launcher: Launcher) -> None:
    program = (
        TRAINS
        + """
if attempt:
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
say(f"{index} is ready")
forever()
"""
    )
    options = ("--workers", "2", "--elastic", "1:2", "--log-dir", "logs")
    started = launcher.start(*options, "--", str(launcher.write(program)))
    started.wait_for("0 is ready"), started.wait_for("1 is ready")
    assert launcher.run("--scale-to", "1", "--log-dir", "logs").code == 0
    done = started.end()
    assert (done.code, workers_of(done.err)) == (0, [2, 1])


def test_tasks_that_end_without_saving_their_state_are_named(launcher: Launcher) -> None:
    program = (
        TRAINS
        + """
if attempt:
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_DFL if index else signal.SIG_IGN)
say(f"{index} is ready")
forever()
"""
    )
    options = ("--workers", "2", "--elastic", "1:2", "--log-dir", "logs", "--grace-seconds", "0.2")
    started = launcher.start(*options, "--", str(launcher.write(program)))
    started.wait_for("0 is ready"), started.wait_for("1 is ready")
    assert launcher.run("--scale-to", "1", "--log-dir", "logs").code == 0
    done = started.end()
    assert done.code == 0
    assert "asked for: 2 -> 1 worker; worker 1, worker 0 ended without saving their state\n" in done.err


def test_a_request_resets_the_count_of_restarts(launcher: Launcher) -> None:
    program = (
        TRAINS
        + """
progress.record(attempt)
if attempt in (0, 2):
    sys.exit(3)
if attempt == 1:
    forever()
"""
    )
    options = ("--workers", "2", "--elastic", "1:2", "--max-restarts", "1", "--log-dir", "logs", "--grace-seconds", "9")
    started = launcher.start(*options, "--", str(launcher.write(program)))
    started.wait_for("worker-0-1"), started.wait_for("worker-1-1")
    assert launcher.run("--scale-to", "1", "--log-dir", "logs").code == 0
    done = started.end()
    assert done.code == 0
    assert workers_of(done.err) == [2, 2, 1, 1]


def test_a_signal_to_the_launcher_ends_an_elastic_run(launcher: Launcher) -> None:
    options = ("--workers", "2", "--elastic", "1:2", "--log-dir", "logs", "--grace-seconds", "25")
    started = launcher.start(*options, "--", str(launcher.write(TRAINS + "forever()")))
    started.wait_for("worker-0-0"), started.wait_for("worker-1-0")
    started.process.send_signal(signal.SIGTERM)
    done = started.end()
    assert done.code == 75
    assert not (launcher.place / "worker-0-1").exists()


def test_a_second_elastic_run_in_one_directory_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    elastic = Elastic(least=1, most=2)
    with (
        ScaleRequests(tmp_path, elastic),
        pytest.raises(
            ValueError, match="expected --log-dir to be a directory that no other elastic run uses, received"
        ),
    ):
        ScaleRequests(tmp_path, elastic)
    ScaleRequests(tmp_path, elastic).close()


def test_requests_are_refused_where_no_elastic_run_goes_on(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"^expected --log-dir to be that of a run with --elastic that goes on, "):
            request_workers(folder, 2)
    # A launcher that was killed leaves its file, and no lock.
    (tmp_path / "elastic.json").write_text(json.dumps({"least": 1, "most": 2, "answered": None}))
    with pytest.raises(ValueError, match=r"^expected --log-dir to be that of a run"):
        request_workers(tmp_path, 2)


def test_requests_out_of_range_are_refused_and_those_without_an_answer_time_out(tmp_path: Path) -> None:
    with ScaleRequests(tmp_path, Elastic(least=1, most=2)) as requests:
        with pytest.raises(ValueError, match=r"^expected --scale-to to be from 1 to 2, .* received 3\.$"):
            request_workers(tmp_path, 3)
        assert requests.take() is None
        with pytest.raises(TimeoutError, match=r"^expected the launcher .* to answer within 0\.1 s, "):
            request_workers(tmp_path, 2, timeout_seconds=0.1)
        assert requests.take() is None
        with pytest.raises(ValueError, match=r"^expected --log-dir to be a directory that no other elastic run uses, "):
            ScaleRequests(tmp_path, Elastic(least=1, most=2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"workers": "x", "id": ""}', '{"workers": 9, "id": ""}'])
def test_a_request_that_the_program_has_not_written_is_ignored(tmp_path: Path, text: str) -> None:
    with ScaleRequests(tmp_path, Elastic(least=1, most=2)) as requests:
        (tmp_path / "scale-to.json").write_text(text)
        assert requests.take() is None
        wait_until(lambda: not (tmp_path / "scale-to.json").exists(), "the request is removed")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--scale-to 2", "expected --scale-to N with --log-dir DIR and nothing else, received '--scale-to 2';"),
        ("--scale-to 2 --log-dir x --workers 2", "expected --scale-to N with --log-dir DIR and nothing else"),
        ("--scale-to 2 --log-dir x -- train.py", "expected --scale-to N with --log-dir DIR and nothing else"),
        ("--elastic 2 -- x", "expected --elastic MIN:MAX, received '2'; write it as in --elastic 1:4."),
        ("--elastic 3:2 -- x", "expected --elastic MIN:MAX with 1 <= MIN <= MAX, received 3:2."),
        ("--elastic 0:2 -- x", "expected --elastic MIN:MAX with 1 <= MIN <= MAX, received 0:2."),
        ("--elastic -1:2 -- x", "argument --elastic: expected one argument"),
        ("--elastic 2:4 -- x", "expected --workers to be from 2 to 4 with --elastic 2:4, received 1."),
        ("--elastic 1:4 --ps 1 -- x", "expected no --ps with --elastic 1:4, received --ps 1; leave one of them out"),
        ("--elastic 1:9999 -- x", "expected at most 1024 tasks on one machine, received 9999;"),
        ("--elastic 1:2 --port-base 65535 -- x", "received 65535 for 2 tasks."),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    assert message in capsys.readouterr().err
