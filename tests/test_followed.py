"""A reader who follows the README and the tutorial literally comes to the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.followed import Commands, Save, actions, after, follow, missing_line
from tests.processes import ROOT

PAGE = """
Save this as `one.py`:

```python
print("one and two")
```

```sh
export WORD=three
python one.py
```

```text
one ... two
```

In the first terminal:

```sh
echo $WORD > word; until [ -e other ]; do sleep 0.01; done
```

In the second terminal:

```sh
touch other
```
"""


def test_programs_are_saved_and_commands_run_in_their_terminals(tmp_path: Path) -> None:
    done = actions(PAGE)
    assert done == [
        Save("one.py", 'print("one and two")\n'),
        Commands(("export WORD=three\npython one.py\n",), "one ... two\n"),
        Commands(("echo $WORD > word; until [ -e other ]; do sleep 0.01; done\n", "touch other\n")),
    ]
    follow(done, tmp_path)
    assert (tmp_path / "word").read_text() == "three\n"


def test_a_command_that_fails_or_shows_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="expected the exit code 0"):
        follow([Commands(("false\n",))], tmp_path)
    with pytest.raises(AssertionError, match="expected the line 'two'"):
        follow([Commands(("echo one\n",), "two\n")], tmp_path)


def test_lines_are_expected_in_their_order() -> None:
    assert missing_line("one\ntwo ... three\n", "zero one\ntwo and three") is None
    assert missing_line("two\none\n", "one\ntwo") == "one"


def test_a_block_that_nobody_can_follow_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a block that a reader can follow, received python"):
        actions("Look at this:\n\n```python\nprint()\n```\n")


@pytest.fixture
def keras_of_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Keras that comes with tfdist: the numbers on the page are those of Keras 3."""
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


@pytest.mark.full
@pytest.mark.usefixtures("keras_of_a_reader")
def test_the_tutorial_comes_to_its_end_where_tfdist_is_installed(tmp_path: Path) -> None:
    follow(after(actions((ROOT / "docs" / "tutorial.md").read_text()), "python plain.py"), tmp_path)


@pytest.mark.full
@pytest.mark.usefixtures("keras_of_a_reader")
def test_the_tutorial_comes_to_its_end_in_a_new_environment(tmp_path: Path) -> None:
    python = Path(sys.executable).resolve()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(python)
    path = subprocess.run(["bash", "-c", "echo $PATH"], capture_output=True, text=True, check=True).stdout.strip()
    folder = tmp_path / "reader"
    folder.mkdir()
    done = actions((ROOT / "docs" / "tutorial.md").read_text())
    follow(done, folder, environment={"PATH": f"{tmp_path / 'bin'}:{path}"})
