"""Every message of tfdist is in docs/troubleshooting.md, which is what the program writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.messages import entries, native_source, page, source
from tests.processes import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
MODULE = '''
"""A docstring of several words."""

ADVICE = "give another one"


def refuse(name: str, *, what: str) -> ValueError:
    """Another docstring of several words."""
    return ValueError(f"expected {name} to be {what}, received {name!r}; {ADVICE}.")


def check(value: int, workers: list[str]) -> None:
    if value < 0:
        raise refuse("--steps", what="0 or more")
    if value > 9:
        raise refuse(str(value), what="9 or less")
    if not workers:
        raise ValueError("no workers")
    get_logger().warning("worker %d of %s waits", value, "the cluster" if value else "one host")
    get_logger().info("information is not a message")
    parser.add_argument("--steps", help="the number of steps of an epoch")
    names = ", ".join(workers)
    end = f"the end of {len(workers)} workers"
    print(f"this is {end}: {names}")
'''


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(source, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    return [message.text for message in source.in_file(path)]


def test_messages_are_put_together_from_constants_arguments_and_local_variables(found: list[str]) -> None:
    assert "expected --steps to be 0 or more, received --steps; give another one." in found
    assert "expected <name> to be 9 or less, received <name>; give another one." in found
    assert "worker <value> of [one host | the cluster] waits" in found
    assert "this is the end of <number of workers> workers: <names>" in found
    assert "no workers" in found


def test_messages_of_the_native_transport_are_the_texts_of_a_statement_joined(tmp_path: Path) -> None:
    path = tmp_path / "engine.cc"
    path.write_text(
        '#include "engine.h"\n'
        "// What it does not say.\n"
        'void F() { text << "expected " << n << " ranks, "\n    "received " << m; Fail("two words"); }\n'
        'void G() { throw PeerLost("its host is gone"); }\n'
    )
    assert list(native_source.native_texts(path)) == [
        (3, "expected <value> ranks, received <value>"),
        (5, "its host is gone"),
    ]


def test_docstrings_help_and_information_are_no_messages(found: list[str]) -> None:
    assert len(found) == 5, found


def test_every_message_has_an_entry_or_says_itself_what_to_do() -> None:
    missing = [f"{message.path}:{message.line}: {message.text}" for message in entries.unlisted()]
    assert not missing, (
        "expected an entry in tests/messages/advice.toml, or a line in self_explaining.txt, or in other.txt for a text "
        f"that is no message, received none for: {missing}"
    )


def test_every_entry_belongs_to_a_message() -> None:
    assert not entries.stale()


def test_a_new_message_and_a_message_that_is_gone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = source.messages()[1:]
    new = source.Message("tfdist/cluster/new.py", 1, "expected a message that nobody knows, received one.", True)
    monkeypatch.setattr(entries, "messages", lambda: (*kept, new))
    assert entries.unlisted() == [new]
    assert entries.stale() == [source.messages()[0].text]


def test_the_page_is_what_the_program_writes() -> None:
    assert PAGE.read_text() == page.page(), "run python -m tests.messages --write docs/troubleshooting.md"


def test_entries_are_found_by_their_titles_and_their_links_lead_to_headings() -> None:
    text = PAGE.read_text()
    anchors = [page.anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= set(anchors)


def test_each_entry_shows_a_message_a_cause_and_what_to_do() -> None:
    for entry in (*entries.advice(), *entries.upstream()):
        assert entry.shown(), entry.title
        assert entry.means, entry.title
        assert entry.do, entry.title


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("did not answer in", "A worker does not answer at the start"),
        ("expected the same training on all workers", "The workers train differently"),
        ("not finite (", "A loss is not finite"),
        ("waits for its own data", "A worker waits for its own data"),
        ("TensorFlow was started by", "TensorFlow has started too early"),
        ("Shape mismatch in the collective instance", "Shape mismatch in the collective instance"),
        ("Collective ops must be configured", "Collective ops must be configured at program startup"),
        ("failed call to cuInit", "TensorFlow finds no GPU"),
        ("Socket closed", "UnavailableError, Socket closed or failed to connect to all addresses"),
        ("ran out of data", "Your input ran out of data"),
    ],
)
def test_words_of_a_message_lead_to_its_entry(words: str, title: str) -> None:
    sections = PAGE.read_text().split("\n### ")[1:]
    shown = [section for section in sections if any(words in line for line in section.splitlines() if line[:2] == "- ")]
    assert shown[0].splitlines()[0] == title
