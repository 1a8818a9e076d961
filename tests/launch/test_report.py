from __future__ import annotations

from pathlib import Path

from tfdist.cluster import Task
from tfdist.launch.report import failure, header, lines_to_show, success
from tfdist.launch.result import TaskExit

W0, W1, PS, CHIEF = Task("worker", 0), Task("worker", 1), Task("ps", 0), Task("chief", 0)


def test_the_header_names_jobs_ports_threads_and_logs() -> None:
    line = header([CHIEF, W0, W1, PS], {CHIEF: 1, W0: 2, W1: 3, PS: 4}, host="here", share=2, log_dir=Path("logs"))
    assert line == "1 chief, 2 workers, 1 ps on here ports 1, 2, 3, 4; 2 threads for each worker; logs in logs"


def test_the_header_says_that_threads_are_not_set() -> None:
    assert "; threads not set; " in header([W0], {W0: 1}, host="here", share=0, log_dir=Path("logs"))


def test_an_exit_by_a_signal_has_its_name_and_its_shell_code() -> None:
    killed = TaskExit(task=W0, code=-9, seconds=1.0)
    assert (killed.how, killed.shell_code) == ("killed by SIGKILL", 137)
    assert TaskExit(task=W0, code=-63, seconds=1.0).how.startswith("killed by ")
    assert (TaskExit(task=W0, code=3, seconds=1.0).how, TaskExit(task=W0, code=3, seconds=1.0).shell_code) == (
        "exit code 3",
        3,
    )


def test_a_failure_names_the_first_task_and_those_that_ended_with_it_but_not_those_that_the_launcher_ended() -> None:
    first = TaskExit(task=W1, code=3, seconds=1.0)
    exits = [first, TaskExit(task=W0, code=1, seconds=1.1), TaskExit(task=PS, code=-15, seconds=1.2, signalled=True)]
    text = failure(first, exits, tail=["a", "b"], log=Path("logs/worker-1.log"))
    assert text.splitlines() == [
        "worker 1 failed first: exit code 3, 1.0 s after the start",
        "  worker 0 ended by itself 0.10 s later (exit code 1), probably as a consequence",
        "  last lines of worker 1 (logs/worker-1.log):",
        "    a",
        "    b",
    ]


def test_a_task_whose_exception_made_others_end_sooner_is_named_first_also_if_the_launcher_ended_it() -> None:
    first = TaskExit(task=W0, code=1, seconds=10.0)
    exits = [first, TaskExit(task=W1, code=-15, seconds=10.2, signalled=True)]
    tracebacks = {W1: 9.8, W0: 9.9}
    text = failure(
        first, exits, tail=["b"], log=Path("logs/worker-0.log"), tracebacks=tracebacks, cause=W1, cause_tail=["a"]
    )
    assert text.splitlines() == [
        "worker 1 failed first: an exception, 9.8 s after the start",
        "  worker 0 ended by itself 0.20 s later (exit code 1), probably as a consequence",
        "  last lines of worker 1 (logs/worker-1.log):",
        "    a",
        "  last lines of worker 0 (logs/worker-0.log):",
        "    b",
    ]


def test_the_report_says_that_a_task_wrote_nothing() -> None:
    first = TaskExit(task=W1, code=-9, seconds=1.0)
    assert "worker 1 wrote nothing (x.log)" in failure(first, [first], tail=[], log=Path("x.log"))


def test_the_last_thirty_lines_are_shown_without_a_traceback() -> None:
    assert lines_to_show([str(number) for number in range(100)]) == [str(number) for number in range(70, 100)]


def test_the_last_of_several_tracebacks_is_shown_with_those_chained_to_it() -> None:
    head = "Traceback (most recent call last):"
    chain = "During handling of the above exception, another exception occurred:"
    old, first, second = [head, "old"], [head, "KeyError"], ["", chain, "", head, "ValueError"]
    assert lines_to_show([*old, "step", *first, *second]) == [*first, *second]
    assert lines_to_show([*first, *second, "step", *old]) == old


def test_success_distinguishes_tasks_that_the_launcher_ended_from_those_that_ended_by_themselves() -> None:
    exits = [TaskExit(task=CHIEF, code=0, seconds=1.0), TaskExit(task=PS, code=-15, seconds=6.0, signalled=True)]
    assert success([CHIEF, PS], exits, seconds=6.0) == (
        "chief 0 ended with exit code 0 after 6.0 s; the launcher then ended ps 0"
    )
    assert success([CHIEF], exits[:1], seconds=1.0) == "chief 0 ended with exit code 0 after 1.0 s"
    lost = [exits[0], TaskExit(task=W0, code=1, seconds=1.5)]
    assert success([CHIEF, W0], lost, seconds=2.0).endswith("; worker 0 then ended with exit code 1")
