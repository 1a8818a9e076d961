"""Two workers that train with StallWatch: what stops them is named in the log, and the job asks for a restart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from benchmarks.namespaces import hosts
from tests.watch.workers import Worker, workers
from tfdist.cluster.exit_codes import RESTART_CODE

STACK = r"Python stacks of this process(.|\n)*training\.py\", line \d+ in main"


def addresses(ports: list[int]) -> list[str]:
    return [f"localhost:{port}" for port in ports]


def expect_restart(worker: Worker, sentence: str) -> None:
    """Waits for a stall in the log, with a sentence and the stack of the thread that trains, and the exit code 75."""
    worker.wait_for(sentence)
    worker.wait_for(STACK)
    assert worker.end() == RESTART_CODE


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.full)])
def test_a_stopped_worker_is_named_and_the_other_one_asks_for_a_restart(victim, free_ports, tmp_path):
    with workers(tmp_path, addresses(free_ports(2)), "--floor=60", "--deadline=100") as both:
        both[victim].wait_for("MADE 8")
        both[victim].send(signal.SIGSTOP)
        pid = both[victim].process.pid
        expect_restart(
            both[1 - victim],
            rf"worker {victim} is stopped: its machine accepts connections at localhost:\d+, but its process {pid} is "
            rf"in state T, stopped by a signal, .* its main thread was last at training\.py:\d+ in main",
        )
        assert f"worker {1 - victim} waits for the others" in both[1 - victim].text()


def test_a_worker_whose_data_thread_is_blocked_is_named_and_both_ask_for_a_restart(free_ports, tmp_path):
    # Not in the first steps: a function that is new since the last look may be that of the step before, and a step that
    # traces has a limit of half an hour.
    arguments = ["--faults=block_data", "--at=60", "--floor=4", "--deadline=3"]
    with workers(tmp_path, addresses(free_ports(2)), *arguments) as both:
        for worker in both:
            expect_restart(
                worker,
                r"worker 1 waits for its own data: .* a thread of the pipeline is at training\.py:\d+ in rows",
            )
        assert "worker 0 waits for the others" in both[0].text()
        assert '", line' in both[1].text()
        assert "in rows\n" in both[1].text().partition("Python stacks")[2]


@pytest.mark.full
def test_a_worker_whose_native_code_holds_the_interpreter_lock_is_named_and_writes_its_stack(free_ports, tmp_path):
    arguments = ["--faults=hold_lock", "--seconds=30", "--at=30", "--floor=6", "--deadline=5"]
    with workers(tmp_path, addresses(free_ports(2)), *arguments) as both:
        expect_restart(both[0], r"worker 1 runs no Python code: its server answers at localhost:\d+, but no record")
        assert both[1].wait_for(r"Timeout \(0:00:06\)!(.|\n)*in rows")
        # The request of worker 0 waits until the lock is free.
        assert both[1].end() == RESTART_CODE


@pytest.mark.parametrize(
    ("faults", "where"),
    [
        (["slow_trace", "slow_data"], "its data"),
        pytest.param(["slow_callback"], "its callbacks", marks=pytest.mark.full),
    ],
)
def test_neither_a_slow_first_trace_nor_a_straggler_ends_the_job_and_the_straggler_is_named(
    faults, where, free_ports, tmp_path
):
    sizes = ["--trace-seconds=12", "--seconds=0.2", "--step-seconds=0.05", "--steps=90"]
    limits = ["--floor=10", "--deadline=1"]
    with workers(tmp_path, addresses(free_ports(2)), *sizes, *limits, "--faults", *faults) as both:
        assert [worker.end() for worker in both] == [0, 0]
        for worker in both:
            assert "straggler: worker 1 works" in worker.text()
            assert f"it spends the time in {where}" in worker.text()
            assert "stall:" not in worker.text()
            assert "Python stacks" not in worker.text()


@pytest.mark.full
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"), reason="needs root and iproute2"
)
def test_a_cut_link_is_named_on_both_sides(tmp_path: Path):
    with hosts(2, rate=None) as machines:
        ends = [f"{machine.address}:2222" for machine in machines]

        def on_machine(index: int, command: list[str]) -> list[str]:
            return machines[index].command(command)

        with workers(tmp_path, ends, "--floor=60", "--deadline=100", start=on_machine) as both:
            for worker in both:
                worker.wait_for("MADE 8")
            subprocess.run(machines[1].command(["ip", "link", "set", "eth0", "down"]), check=True)
            for index, worker in enumerate(both):
                other = 1 - index
                expect_restart(worker, rf"worker {other} is out of reach: {ends[other]} replies nothing .* is cut\.")
