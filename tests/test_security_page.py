"""What docs/security.md says about sockets, pickle and files is what the code does."""

from __future__ import annotations

import ast
import re

from tests.processes import ROOT
from tfdist.cluster import greeting, listener, rendezvous_leader
from tfdist.cluster.rendezvous_lines import MAX_REPORT_BYTES
from tfdist.doctor import wire

TEXT = (ROOT / "docs" / "security.md").read_text()
MODULES = sorted((ROOT / "tfdist").rglob("*.py"))
# What docs/security.md says about pickle: only what notebook.run and verify send between processes of this machine.
PICKLE = re.compile(r"tfdist/(_sending|notebook/\w+|verify/\w+)\.py")
# The table of sockets lists the files that receive what others send. The others connect, or only bind.
LISTENING = {
    "tfdist/cluster/listener.py",
    "tfdist/cluster/sockets.py",
    "tfdist/doctor/server.py",
    "tfdist/watch/mesh.py",
    "tfdist/bench/wire.py",
    "tfdist/cluster/rendezvous_leader.py",
}


def imported(path: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_only_notebook_and_verify_use_pickle() -> None:
    names = {str(path.relative_to(ROOT)) for path in MODULES}
    using = {name for name in names if imported(name) & {"pickle", "cloudpickle", "marshal", "dill", "shelve"}}
    assert "tfdist/_sending.py" in using
    assert [name for name in sorted(using) if not PICKLE.fullmatch(name)] == []


def test_every_file_that_listens_or_receives_is_known() -> None:
    found = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                waits = node.func.attr in ("listen", "accept", "recvfrom") or ast.unparse(node.func) == "udp.recv"
                if waits or ast.unparse(node.func) == "socket.create_server":
                    found.add(str(path.relative_to(ROOT)))
    assert found == LISTENING


def test_every_file_that_is_named_exists() -> None:
    paths = re.findall(r"`(tfdist/[\w/]+\.py)`", TEXT)
    assert len(paths) >= 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_limits_are_those_of_the_code() -> None:
    assert f"one line of at most {greeting.MAX_BYTES} bytes" in TEXT
    assert f"at most {listener._MOST_CONNECTIONS} connections" in TEXT
    assert f"one JSON line of at most {MAX_REPORT_BYTES} bytes with a proof of the run id" in TEXT
    assert f"at most {rendezvous_leader._MOST_STRANGERS} connections that have not sent one" in TEXT
    assert f"JSON lines of at most {wire.MOST_BYTES >> 20} MiB" in TEXT
    bits = re.search(r"secrets\.randbits\((\d+)\)", (ROOT / "tfdist/watch/mesh_of.py").read_text())
    assert bits is not None
    assert f"a random number of {bits[1]} bits" in TEXT
