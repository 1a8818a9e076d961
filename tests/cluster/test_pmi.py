"""The client of the key-value store of mpiexec, with a server in this process. test_mpiexec.py has the real ones."""

from __future__ import annotations

import concurrent.futures
import os
import socket
import time

import pytest

from tfdist.cluster import pmi
from tfdist.cluster.meeting import Meeting


def meeting(rank: int, descriptor: int) -> Meeting:
    return Meeting(rank=rank, size=2, run_id="", hosts=(), ports=(), named_by="", advice="set X", pmi=descriptor)


@pytest.fixture
def pair(monkeypatch):
    # A descriptor of this process must not get `finalize` at its end.
    monkeypatch.setattr(pmi, "_finalize_at_exit", lambda descriptor: None)
    client, server = socket.socketpair()
    with client, server:
        server.settimeout(10)
        yield client, server


def answer(server: socket.socket, *replies: bytes) -> list[bytes]:
    asked = []
    for reply in replies:
        asked.append(server.recv(4096))
        # A reply may come in pieces.
        for part in (reply[:5], reply[5:]):
            server.sendall(part)
            time.sleep(0.01)
    return asked


def test_what_rank_0_announces_is_what_the_others_look_up(pair):
    client, server = pair
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        replies = (b"cmd=my_kvsname rc=0 kvsname=kvs_1\n", b"cmd=put_result rc=0\n", b"cmd=barrier_out tag=0\n")
        asked = threads.submit(answer, server, *replies)
        told = pmi.announce(meeting(0, client.fileno()), port=4711, deadline=time.monotonic() + 10)
        put = asked.result(timeout=10)[1].decode()
        value = put.partition("value=")[2].strip()
        assert put.startswith("cmd=put kvsname=kvs_1 key=tfdist value=")
        last = f"cmd=get_result rc=0 value={value}\n".encode()
        replies = (b"cmd=my_kvsname kvsname=kvs_1\n", b"cmd=barrier_out\n", last)
        asked = threads.submit(answer, server, *replies)
        found = pmi.look_up(meeting(1, client.fileno()), deadline=time.monotonic() + 10)
    assert (found.run_id, found.hosts, found.ports) == (told.run_id, told.hosts, (4711,))
    assert len(found.run_id) == 32 and socket.gethostname() in found.hosts


@pytest.mark.parametrize(
    ("reply", "received"),
    [
        (b"cmd=my_kvsname rc=-1 msg=no\n", "received 'cmd=my_kvsname rc=-1 msg=no'"),
        (b"cmd=error\n", "received 'cmd=error'"),
        (b"\xff\xfe\n", "received"),
    ],
)
def test_an_unexpected_reply_is_quoted(pair, reply, received):
    client, server = pair
    server.sendall(reply)
    with pytest.raises(ValueError, match=received) as raised:
        pmi.with_run_id(meeting(1, client.fileno()), deadline=time.monotonic() + 10)
    assert f"rank 1 of 2 about this run at the descriptor PMI_FD={client.fileno()}" in str(raised.value)


def test_a_value_that_is_no_address_is_refused(pair):
    client, server = pair
    replies = (b"cmd=my_kvsname kvsname=k\n", b"cmd=barrier_out\n", b"cmd=get_result rc=0 value=somebody-else\n")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        asked = threads.submit(answer, server, *replies)
        with pytest.raises(ValueError, match="received 'somebody-else' as the address of rank 0"):
            pmi.look_up(meeting(1, client.fileno()), deadline=time.monotonic() + 10)
        asked.result(timeout=10)


def test_silence_ends_at_the_deadline(pair):
    client, _ = pair
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="rank 1 of 2 expected mpiexec to answer 'cmd=get_my_kvsname' once"):
        pmi.with_run_id(meeting(1, client.fileno()), deadline=start + 0.2)
    assert time.monotonic() - start < 5


def test_a_launcher_that_has_ended_is_noticed(pair):
    client, server = pair
    server.close()
    with pytest.raises(ValueError, match="received a descriptor that is closed; start the program as the only one"):
        pmi.with_run_id(meeting(1, client.fileno()), deadline=time.monotonic() + 10)


def test_a_descriptor_of_something_else_is_left_alone(tmp_path):
    with open(tmp_path / "data", "w+b", buffering=0) as file:
        with pytest.raises(ValueError, match="received a descriptor that is closed"):
            pmi.with_run_id(meeting(1, file.fileno()), deadline=time.monotonic() + 10)
        assert os.fstat(file.fileno()).st_size == 0
    with pytest.raises(ValueError, match="received a descriptor that is closed"):
        pmi.with_run_id(meeting(1, 987), deadline=time.monotonic() + 10)
