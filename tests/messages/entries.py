"""The entries of docs/troubleshooting.md, and which message of the source belongs to which of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.messages.source import Message, messages

HERE = Path(__file__).resolve().parent
ADVICE, UPSTREAM = HERE / "advice.toml", HERE / "upstream.toml"
SELF_EXPLAINING, OTHER = HERE / "self_explaining.txt", HERE / "other.txt"
# The headings of the page, and the parts of the source that belong to them. The first one that fits counts.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "Start-up": (
        "tfdist/cluster/peer_",
        "tfdist/cluster/rendezvous",
        "tfdist/cluster/pmi",
        "tfdist/cluster/meeting",
        "tfdist/cluster/environments/mpi",
        "tfdist/cluster/start",
        "tfdist/cluster/sockets",
        "tfdist/cluster/incarnations",
        "tfdist/cluster/wrong",
        "tfdist/cluster/probe",
        "tfdist/cluster/task_watch",
        "tfdist/strategies/first",
        "tfdist/strategies/start",
    ),
    "Cluster and TF_CONFIG": ("tfdist/cluster/",),
    "Strategies and options": (
        "tfdist/strategies/",
        "tfdist/adoption/",
        "tfdist/_",
        "tfdist/__",
        "tfdist/keras_compat/version",
        "tfdist/keras_compat/tested",
    ),
    "Input": ("tfdist/input/", "tfdist/keras_compat/data/"),
    "Model, optimizer and losses": ("tfdist/layers/", "tfdist/optimizers/", "tfdist/keras_compat/", "tfdist/saving/"),
    "Communication": ("tfdist/allreduce/", "tfdist/averaging/", "tfdist/collectives", "tfdist/workers", "native/"),
    "Checkpoint and resume": ("tfdist/checkpoint/",),
    "Launcher": ("tfdist/launch/",),
    "Files for schedulers": ("tfdist/render/",),
    "Watch and stalls": ("tfdist/watch/",),
    "Doctor": ("tfdist/doctor/",),
    "Test and env": ("tfdist/test/", "tfdist/env/"),
    "Verify": ("tfdist/verify/",),
    "Notebook": ("tfdist/notebook/",),
    "Ray": ("tfdist/ray/",),
    "Train and flags": ("tfdist/train/", "tfdist/flags/", "tfdist/bench/"),
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a group of messages means and what to do about it.

    Args:
        subject: the heading of the page.
        title: the symptom.
        says: parts of the messages.
        reasons: texts that are only parts of these messages.
        means: the cause.
        do: what to do.
        tfdist: what tfdist does about a message of TensorFlow.
    """

    subject: str
    title: str
    says: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    means: str
    do: str
    tfdist: str = ""

    def shown(self) -> list[str]:
        """Returns the whole messages of the entry, in the order of its patterns."""
        if self.tfdist:
            return list(self.says)
        found = [message.text for says in self.says for message in messages() if belongs(says, message.text)]
        return list(dict.fromkeys(found))


@cache
def without_names(text: str) -> str:
    """Returns a text with the same name for all placeholders."""
    while (shorter := re.sub(r"<[^<>]+>", "<>", text)) != text:
        text = shorter
    return text


def belongs(says: str, text: str) -> bool:
    """Returns whether a pattern is a part of a message; the end of the pattern may lie within a word."""
    return without_names(says) in without_names(text)


def same(says: str, text: str) -> bool:
    """Returns whether a pattern is a whole message, but for the names of placeholders and punctuation around it."""
    return without_names(says).strip(" .,:;") == without_names(text).strip(" .,:;")


def load(path: Path, **given: str) -> list[Entry]:
    """Returns the entries of a file."""
    found = tomllib.loads(path.read_text())["entry"]
    return [Entry(**given, **{k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}) for one in found]


@cache
def advice() -> tuple[Entry, ...]:
    """Returns the entries about messages of tfdist."""
    return tuple(load(ADVICE))


@cache
def upstream() -> tuple[Entry, ...]:
    """Returns the entries about messages of TensorFlow, Keras and gRPC."""
    return tuple(load(UPSTREAM, subject="TensorFlow, Keras and gRPC"))


def listed(path: Path) -> tuple[str, ...]:
    """Returns the lines of a list, without comments."""
    return tuple(line for line in path.read_text().splitlines() if line and not line.startswith("# "))


@cache
def has_advice(message: Message) -> bool:
    """Returns whether an entry says what to do about a message."""
    return any(
        any(belongs(says, message.text) for says in entry.says)
        or any(same(reason, message.text) or belongs(reason, message.text) for reason in entry.reasons)
        for entry in advice()
    )


def unlisted() -> list[Message]:
    """Returns the messages without an entry that are in neither of the two lists."""
    known = {without_names(line) for path in (SELF_EXPLAINING, OTHER) for line in listed(path)}
    return [message for message in messages() if not has_advice(message) and without_names(message.text) not in known]


def stale() -> list[str]:
    """Returns the patterns and lines that no message of the source has any more."""
    texts = [message.text for message in messages()]
    patterns = [says for entry in advice() for says in (*entry.says, *entry.reasons)]
    gone = [says for says in patterns if not any(belongs(says, text) or same(says, text) for text in texts)]
    left = {without_names(message.text) for message in messages() if not has_advice(message)}
    return gone + [
        line for path in (SELF_EXPLAINING, OTHER) for line in listed(path) if without_names(line) not in left
    ]


def subject_of(message: Message) -> str:
    """Returns the heading under which a message without an entry is listed."""
    return next(subject for subject, parts in SUBJECTS.items() if message.path.startswith(parts))


def self_explaining() -> dict[str, list[str]]:
    """Returns the messages that say what to do themselves, by heading."""
    known = {without_names(line) for line in listed(SELF_EXPLAINING)}
    found: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
    for message in messages():
        if without_names(message.text) in known and not has_advice(message):
            found[subject_of(message)].append(message.text)
    return {subject: unique(texts) for subject, texts in found.items() if texts}


def unique(texts: Iterable[str]) -> list[str]:
    """Returns texts in their order, each once."""
    return sorted(dict.fromkeys(texts), key=lambda text: text.lower().lstrip("<[-`'\""))
