"""Runs that succeed: the environment of the tasks, the lines that are shown, and the end of the run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.launch import LaunchSpec, launch

from .conftest import Launcher


def test_every_task_gets_its_tf_config_and_the_evaluator_is_not_in_the_cluster(launcher: Launcher) -> None:
    program = "print(json.dumps(config), flush=True)"
    done = launcher.run("--workers", "2", "--chief", "--evaluator", program=program)
    assert done.code == 0
    configs = {name: json.loads(launcher.log(f"{name}-0.log")) for name in ("chief", "worker", "evaluator")}
    cluster = configs["chief"]["cluster"]
    assert {job: len(addresses) for job, addresses in cluster.items()} == {"chief": 1, "worker": 2}
    assert len({address for addresses in cluster.values() for address in addresses}) == 3
    assert all(config["cluster"] == cluster for config in configs.values())
    assert configs["evaluator"]["task"] == {"type": "evaluator", "index": 0}
    assert json.loads(launcher.log("worker-1.log"))["task"] == {"type": "worker", "index": 1}


def test_parameter_servers_add_a_chief_and_the_launcher_reports_it(launcher: Launcher) -> None:
    done = launcher.run("--ps", "1", "--grace-seconds", "20", program="print(list(config['cluster']))")
    assert done.code == 0
    assert "tfdist launch: --ps needs a coordinator, so a chief is added\n" in done.err
    assert "[chief 0] ['chief', 'worker', 'ps']\n" in done.out


def test_tasks_can_listen_on_their_ports_while_the_launcher_holds_them(launcher: Launcher) -> None:
    program = """
import socket
address = config["cluster"][job][index]
listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("", int(address.rpartition(":")[2])))
listener.listen(5)
say(f"listening-{index}")
wait_for(f"listening-{1 - index}")
host, _, port = config["cluster"][job][1 - index].rpartition(":")
socket.create_connection((host, int(port)), timeout=10).close()
say(f"connected-{index}")
wait_for(f"connected-{1 - index}")
"""
    assert launcher.run("--workers", "2", program=program).code == 0


def test_output_is_shown_in_order_with_prefixes_and_logged_without(launcher: Launcher) -> None:
    program = r"""
print("to stdout")
print("to stderr", file=sys.stderr)
os.write(1, b"1/2\r2/2\n\xff no end")
"""
    done = launcher.run("--workers", "2", program=program)
    for task in ("worker 0", "worker 1"):
        lines = [line.removeprefix(f"[{task}] ") for line in done.out.splitlines() if line.startswith(f"[{task}] ")]
        assert lines == ["to stdout", "to stderr", "2/2", "\ufffd no end"]
    assert len(done.out.splitlines()) == 8
    raw = (launcher.place / "logs" / "worker-1.log").read_bytes()
    assert raw == b"to stdout\nto stderr\n1/2\r2/2\n\xff no end"


def test_the_messages_of_the_launcher_are_on_stderr(launcher: Launcher) -> None:
    done = launcher.run("--workers", "2", "--threads-per-rank", "3", program="")
    first, *_, last_but_one, last = done.err.splitlines()
    assert first.startswith("tfdist launch: 2 workers on localhost ports ")
    assert first.endswith("; 3 threads each; logs in logs")
    assert last_but_one.startswith("tfdist launch: all 2 tasks ended with exit code 0 after ")
    assert last == "tfdist launch: logs in logs"
    assert done.out == ""


def test_logs_go_to_a_new_directory_by_default(launcher: Launcher) -> None:
    done = launcher.run("--", sys.executable, "-c", "print('here')")
    assert done.code == 0
    (log,) = launcher.place.glob("tfdist-logs/*/worker-0.log")
    assert log.read_text() == "here\n"
    assert str(log.parent.relative_to(launcher.place)) in done.err


def test_a_module_is_run_with_this_python(launcher: Launcher) -> None:
    (launcher.place / "some_module.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    done = launcher.run("--workers", "1", "-m", "some_module", "--epochs", "3")
    assert done.out == f"[worker 0] {sys.executable} ['--epochs', '3']\n"


def test_threads_and_variables_reach_the_tasks_and_variables_of_the_user_override_them(launcher: Launcher) -> None:
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PYTHONUNBUFFERED", "A")
    program = f"print(*(os.environ.get(name) for name in {names!r}), len(os.environ['TFDIST_LAUNCH_ID']) > 8)"
    done = launcher.run(
        "--threads-per-rank", "4", "--env", "A=b=c", "--env", "OMP_NUM_THREADS=7", program=program, env={"A": "old"}
    )
    assert done.out == "[worker 0] 7 4 4 1 b=c True\n"


def test_zero_threads_per_task_sets_no_variable(launcher: Launcher) -> None:
    program = "print([name for name in os.environ if 'THREADS' in name])"
    assert launcher.run("--threads-per-rank", "0", program=program).out == "[worker 0] []\n"


def test_after_the_success_of_a_worker_the_launcher_waits_for_the_others(launcher: Launcher) -> None:
    program = """
if index == 0:
    say("first is done")
else:
    wait_for("first is done")
    wait_for("go on")
    say("second is done")
"""
    command = ("--grace-seconds", "0", "--workers", "2", "--", str(launcher.write(program)))
    started = launcher.start(*command)
    started.wait_for("first is done")
    (launcher.place / "go on").touch()
    assert started.end().code == 0
    assert (launcher.place / "second is done").exists()


def test_a_coordinators_success_ends_its_workers_and_parameter_servers(launcher: Launcher) -> None:
    program = """
if job == "chief":
    wait_for("worker is up"), wait_for("ps is up")
    sys.exit(0)
say(job + " is up")
forever()
"""
    done = launcher.run("--ps", "1", "--grace-seconds", "0.2", program=program)
    assert done.code == 0
    assert "chief 0 ended with exit code 0 after " in done.err
    assert "; the launcher then ended worker 0, ps 0\n" in done.err
    assert launcher.alive() == {}


def test_workers_and_ps_may_end_by_themselves_after_the_coordinators_success(launcher: Launcher) -> None:
    program = """
if job == "chief":
    say("parent", os.getppid())
    wait_for("worker knows"), wait_for("ps knows")
    say("pid", os.getpid())
    sys.exit(0)
say(job + " knows")
wait_for("pid")
pid = open(os.path.join(here, "pid")).read()
while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
print("ended by itself")
"""
    done = launcher.run("--ps", "1", "--grace-seconds", "25", program=program)
    assert done.code == 0
    assert "all 3 tasks ended with exit code 0" in done.err
    assert "[ps 0] ended by itself\n" in done.out


def test_an_evaluator_has_its_own_grace_period_after_all_others(launcher: Launcher) -> None:
    program = """
if job == "worker":
    wait_for("evaluating")
else:
    say("evaluating")
    forever()
"""
    command = ("--evaluator", "--grace-seconds", "25", "--evaluator-grace-seconds", "0.2")
    done = launcher.run(*command, program=program)
    assert done.code == 0
    assert "worker 0 ended with exit code 0 after " in done.err
    assert "; the launcher then ended evaluator 0\n" in done.err


def test_an_evaluator_may_finish_within_its_grace_period(launcher: Launcher) -> None:
    program = """
if job == "worker":
    say("pid", os.getpid())
else:
    wait_for("pid")
    print("evaluated")
"""
    done = launcher.run("--evaluator", "--grace-seconds", "0", program=program)
    assert done.code == 0
    assert "[evaluator 0] evaluated\n" in done.out
    assert "all 2 tasks ended with exit code 0" in done.err


def test_launch_returns_exit_code_first_failure_and_log_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = LaunchSpec(
        command=(sys.executable, "-c", "import sys; sys.exit(3)"), log_dir=tmp_path / "logs", timeout_seconds=30
    )
    result = launch(spec)
    print(capsys.readouterr().err)
    assert result.exit_code == 3
    assert result.first_failure is not None
    assert result.first_failure.task.name == "worker 0"
    assert [item.code for item in result.exits] == [3]
    assert result.log_dir == tmp_path / "logs"


def test_a_taken_port_is_refused_with_task_and_port(launcher: Launcher) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        done = launcher.run("--port-base", str(port), program="")
    assert done.code == 2
    assert done.err == (
        f"tfdist launch: expected port {port} to be free for worker 0, but it is taken; "
        "choose another --port-base or leave it out.\n"
    )
    assert launcher.alive() == {}


def test_a_command_that_does_not_exist_is_refused_with_127_and_leaves_no_process_or_file(launcher: Launcher) -> None:
    done = launcher.run("--workers", "2", "--", "no-such-command", "--flag")
    assert done.code == 127
    assert done.err == (
        "tfdist launch: expected a command that exists, received 'no-such-command'; check its spelling and PATH.\n"
    )
    assert launcher.alive() == {}
    assert list(launcher.place.iterdir()) == []


@pytest.mark.parametrize(("mode", "text"), [(0o644, "#!/bin/sh\n"), (0o755, "no interpreter is named")])
def test_a_file_that_cannot_be_executed_is_refused_with_126(launcher: Launcher, mode: int, text: str) -> None:
    script = launcher.place / "script"
    script.write_text(text)
    script.chmod(mode)
    done = launcher.run("--workers", "2", "--", "./script")
    assert done.code == 126
    assert "expected a command that can be executed, received './script'; run it with its interpreter" in done.err
    assert launcher.alive() == {}


def test_a_log_dir_that_is_a_file_is_refused(launcher: Launcher) -> None:
    (launcher.place / "file").touch()
    done = launcher.run("--log-dir", "file", "--", "true")
    assert done.code == 2
    assert done.err == ("tfdist launch: expected --log-dir to be a directory that can be written, received 'file'.\n")


def test_neither_the_command_nor_its_help_imports_tensorflow_or_rich() -> None:
    code = (
        "import sys; from tfdist.launch import main; main(['--help']); "
        "sys.exit(str([name for name in ('tensorflow', 'keras', 'numpy', 'rich') if name in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert run.stderr == "[]\n"
