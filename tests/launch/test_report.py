from __future__ import annotations

from pathlib import Path

from tfdist.launch.report import RankExit, failure, header, success, telling_lines
from tfdist.launch.spec import Rank

W0, W1, PS, CHIEF = Rank("worker", 0), Rank("worker", 1), Rank("ps", 0), Rank("chief", 0)


def test_the_header_names_roles_ports_threads_and_logs() -> None:
    line = header([CHIEF, W0, W1, PS], {CHIEF: 1, W0: 2, W1: 3, PS: 4}, host="here", share=2, log_dir=Path("logs"))
    assert line == "1 chief, 2 workers, 1 ps on here ports 1, 2, 3, 4; 2 threads for each worker; logs in logs"


def test_the_header_says_that_threads_are_left_alone() -> None:
    assert "; threads as they are; " in header([W0], {W0: 1}, host="here", share=0, log_dir=Path("logs"))


def test_an_exit_by_a_signal_has_its_name_and_its_shell_code() -> None:
    killed = RankExit(rank=W0, code=-9, seconds=1.0)
    assert (killed.how, killed.shell_code) == ("killed by SIGKILL", 137)
    assert RankExit(rank=W0, code=-63, seconds=1.0).how.startswith("killed by ")
    assert (RankExit(rank=W0, code=3, seconds=1.0).how, RankExit(rank=W0, code=3, seconds=1.0).shell_code) == (
        "exit code 3",
        3,
    )


def test_a_failure_names_the_first_rank_and_those_that_fell_with_it_but_not_those_told_to_end() -> None:
    first = RankExit(rank=W1, code=3, seconds=1.0)
    exits = [first, RankExit(rank=W0, code=1, seconds=1.1), RankExit(rank=PS, code=-15, seconds=1.2, told=True)]
    text = failure(first, exits, tail=["a", "b"], log=Path("logs/worker-1.log"))
    assert text.splitlines() == [
        "worker 1 failed first: exit code 3, 1.0 s after the start",
        "  worker 0 ended by itself 0.10 s later (exit code 1), probably in consequence",
        "  last lines of worker 1 (logs/worker-1.log):",
        "    a",
        "    b",
    ]


def test_a_rank_that_wrote_nothing_is_reported_so() -> None:
    first = RankExit(rank=W1, code=-9, seconds=1.0)
    assert "it wrote nothing (x.log)" in failure(first, [first], tail=[], log=Path("x.log"))


def test_the_last_thirty_lines_are_shown_without_a_traceback() -> None:
    assert telling_lines([str(number) for number in range(100)]) == [str(number) for number in range(70, 100)]


def test_of_several_tracebacks_the_last_is_shown_with_what_it_is_chained_to() -> None:
    head = "Traceback (most recent call last):"
    chain = "During handling of the above exception, another exception occurred:"
    old, first, second = [head, "old"], [head, "KeyError"], ["", chain, "", head, "ValueError"]
    assert telling_lines([*old, "step", *first, *second]) == [*first, *second]
    assert telling_lines([*first, *second, "step", *old]) == old


def test_success_tells_ranks_that_had_to_be_told_from_those_that_ended() -> None:
    exits = [RankExit(rank=CHIEF, code=0, seconds=1.0), RankExit(rank=PS, code=-15, seconds=6.0, told=True)]
    assert success([CHIEF, PS], exits, seconds=6.0) == "chief 0 ended with 0 after 6.0 s; ps 0 then told to end"
    assert success([CHIEF], exits[:1], seconds=1.0) == "all 1 rank ended with 0 after 1.0 s"
    lost = [exits[0], RankExit(rank=W0, code=1, seconds=1.5)]
    assert success([CHIEF, W0], lost, seconds=2.0).endswith("; worker 0 then ended with exit code 1")
