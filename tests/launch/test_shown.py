"""Which lines of tasks `tfdist launch` shows. The log files have all lines."""

from __future__ import annotations

from .conftest import Launcher

NATIVE = "W0000 00:00:1795257882.676926   31522 dataset.cc:997] Input of GeneratorDatasetOp will not be optimized."
NOISY = f"print({NATIVE!r}, flush=True); print('tfdist: strategy a'); print(f'tfdist: {{job}} {{index}}'); print(index)"


def test_log_lines_of_dependencies_are_only_in_the_log_files_and_alike_lines_are_shown_once(launcher: Launcher) -> None:
    done = launcher.run("--workers", "2", program=NOISY)
    assert sorted(done.out.splitlines()) == [
        "[worker 0] 0",
        "[worker 0] tfdist: worker 0",
        "[worker 1] 1",
        "[worker 1] tfdist: worker 1",
        "[workers 0, 1] tfdist: strategy a",
    ]
    for index in range(2):
        expected = f"{NATIVE}\ntfdist: strategy a\ntfdist: worker {index}\n{index}\n"
        assert launcher.log(f"worker-{index}.log") == expected
    last = done.err.splitlines()[-1]
    assert last == "tfdist launch: logs in logs; 2 log lines of dependencies are only there, --show all shows them"


def test_all_lines_are_shown_when_asked_for(launcher: Launcher) -> None:
    done = launcher.run("--workers", "2", "--show", "all", program=NOISY)
    for index in range(2):
        shown = [line for line in done.out.splitlines() if line.startswith(f"[worker {index}]")]
        assert shown == [f"[worker {index}] {line}" for line in launcher.log(f"worker-{index}.log").splitlines()]
    assert done.err.splitlines()[-1] == "tfdist launch: logs in logs"


def test_the_report_of_a_failure_repeats_the_log_lines_of_dependencies(launcher: Launcher) -> None:
    done = launcher.run(program=f"print({NATIVE!r}, flush=True); os._exit(3)")
    assert done.code == 3
    assert NATIVE not in done.out
    assert f"    {NATIVE}\n" in done.err


def test_a_fatal_line_of_a_dependency_is_shown(launcher: Launcher) -> None:
    fatal = "F0000 00:00:1795257845.115898   31274 tensor.cc:52] Check failed: dtype() == expected_dtype"
    done = launcher.run(program=f"print({fatal!r}); print('*** Check failure stack trace: ***')")
    assert done.out == f"[worker 0] {fatal}\n[worker 0] *** Check failure stack trace: ***\n"
