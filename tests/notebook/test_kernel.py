"""notebook.run in the kernel of a notebook: cells that define functions, that fail, and that are interrupted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client import BlockingKernelClient, KernelManager

from tests.conftest import SURROUNDINGS
from tests.notebooks.execution import Shown, execute
from tests.processes import ROOT

DEADLINE_SECONDS = 120.0


def test_cells_show_the_lines_of_their_own_tasks_and_the_traceback_of_the_guilty_one(tmp_path: Path) -> None:
    cells = [
        "import tfdist",
        "def index():\n    import json, os\n    return json.loads(os.environ['TF_CONFIG'])['task']['index']",
        "def value(factor):\n    print('first run of', index())\n    return factor * (index() + 1)",
        "print('returned', tfdist.notebook.run(value, args=[5], workers=2))",
        "import time\ndef fail():\n    if index() == 0:\n        time.sleep(60)\n    raise LookupError('no record')",
        "tfdist.notebook.run(fail, workers=2)",
        "print('goes on')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.cells[5].metadata["tags"] = ["raises-exception"]
    execute(notebook, tmp_path, deadline_seconds=DEADLINE_SECONDS)

    def shown(number: int) -> str:
        return Shown.by(nbformat.v4.new_notebook(cells=[notebook.cells[number]])).text

    assert "[worker 0] first run of 0" in shown(3) and "[worker 1] first run of 1" in shown(3)
    assert "returned 5" in shown(3)
    assert "first run" not in shown(5)
    [error] = [output for output in notebook.cells[5].outputs if output.output_type == "error"]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert (error.ename, error.evalue) == ("LookupError", "no record")
    # The task's own traceback, with the line of the cell, before that of the notebook.
    assert re.search(r"worker 1:\nTraceback (?:.|\n)*raise LookupError\('no record'\)(?:.|\n)*direct cause", text)
    assert "goes on" in shown(6)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))
    for name in SURROUNDINGS:
        monkeypatch.delenv(name, raising=False)
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE_SECONDS)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_stop_button_ends_all_tasks(tmp_path: Path, kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel
    source = """
import tfdist

def wait():
    import os, time
    open(f"pid-{os.getpid()}", "w").close()
    time.sleep(600)

tfdist.notebook.run(wait, workers=2)
"""
    sent = client.execute(source)
    until(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
    manager.interrupt_kernel()
    # Replies to earlier requests, such as whether the kernel is ready, may come first.
    while (reply := client.get_shell_msg(timeout=DEADLINE_SECONDS))["parent_header"]["msg_id"] != sent:
        pass
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
    for path in tmp_path.glob("pid-*"):
        assert not Path("/proc", path.name.removeprefix("pid-")).exists()
