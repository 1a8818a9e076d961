"""Ranks without addresses exchange them at rank 0, or every rank raises by the deadline and names who is absent."""

from __future__ import annotations

import concurrent.futures
import socket
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster import rendezvous
from tfdist.cluster.address import split_address
from tfdist.cluster.meeting import Meeting, ports_of
from tfdist.cluster.rendezvous_lines import Report, Seen, addresses_of, document_of, proof_of
from tfdist.cluster.sockets import bind_all_interfaces
from tfdist.cluster.tf_config import Fields


def meeting(rank: int, size: int, *, run_id: str = "run", **changes: object) -> Meeting:
    values = {"hosts": ("127.0.0.1",), "ports": ports_of(run_id), "named_by": "X", "advice": "set X"}
    return Meeting(rank=rank, size=size, run_id=run_id, **{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def meet(request: pytest.FixtureRequest) -> Callable[..., list[Fields | Exception]]:
    """Returns the outcome of each meeting; each has a thread of its own."""

    def one(where: Meeting, seconds: float, delay: float) -> Fields | Exception:
        time.sleep(delay)
        try:
            met = rendezvous._exchange(where, seconds, lambda line: None)
            request.addfinalizer(met.port.close)
            return met.fields
        except (ValueError, TimeoutError) as error:
            return error

    def all_of(*meetings: Meeting, seconds: float = 30.0, delays: dict[int, float] | None = None) -> list:
        with concurrent.futures.ThreadPoolExecutor(len(meetings)) as threads:
            tasks = [
                threads.submit(one, where, seconds, (delays or {}).get(number, 0.0))
                for number, where in enumerate(meetings)
            ]
            return [task.result(timeout=60) for task in tasks]

    return all_of


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.mark.parametrize("size", [2, 3, 16])
def test_every_rank_gets_the_same_addresses_and_its_own_index(size, meet, run_id):
    found = meet(*(meeting(rank, size, run_id=run_id) for rank in range(size)))
    (addresses,) = {fields.jobs["worker"] for fields in found}
    assert len(set(addresses)) == size
    assert [(fields.task_type, fields.task_index) for fields in found] == [("worker", rank) for rank in range(size)]
    for address in addresses:
        host, port = split_address(address)
        assert host == "127.0.0.1"
        # Each port is held against programs that ask for any port, and free for the server of TensorFlow.
        with bind_all_interfaces(port) as server:
            server.listen(1)


def test_rank_0_may_come_last(meet, run_id):
    found = meet(*(meeting(rank, 3, run_id=run_id) for rank in range(3)), delays={0: 0.5})
    assert len({fields.jobs["worker"] for fields in found}) == 1


def test_absent_ranks_are_named_by_all_others_at_the_deadline(meet, run_id):
    start = time.monotonic()
    found = meet(*(meeting(rank, 5, run_id=run_id) for rank in (0, 1, 3)), seconds=1.0)
    assert time.monotonic() - start < 5.0
    assert {str(error) for error in found} == {
        "ranks 2, 4 of 5 did not report to rank 0 in 1 s; look in their output for why they ended, and check that they "
        "reach the host of rank 0."
    }
    assert all(isinstance(error, TimeoutError) for error in found)


def test_a_rank_that_does_not_find_rank_0_says_where_it_looked(meet, run_id):
    (error,) = meet(meeting(1, 2, run_id=run_id), seconds=0.5)
    assert isinstance(error, TimeoutError)
    assert "rank 1 of 2 did not find rank 0 on 127.0.0.1, 8 ports in 0.5 s (connection refused)" in str(error)
    assert str(error).endswith("or set X.")


def test_two_runs_whose_ports_are_the_same_do_not_mix(meet, run_id):
    ports = ports_of(run_id)
    runs = [[meeting(rank, 3, run_id=f"{run_id} {run}", ports=ports) for rank in range(3)] for run in range(2)]
    found = meet(*runs[0], *runs[1])
    lists = [fields.jobs["worker"] for fields in found]
    assert lists[:3] == [lists[0]] * 3 and lists[3:] == [lists[3]] * 3
    assert not set(lists[0]) & set(lists[3])


def test_a_second_process_with_the_same_rank_is_refused_and_the_others_go_on(meet, run_id):
    ranks = [meeting(rank, 3, run_id=run_id) for rank in (0, 1, 1, 2)]
    found = meet(*ranks, delays={3: 1.0})
    refused = [one for one in found if isinstance(one, ValueError)]
    assert [str(error) for error in refused] == [
        "expected one process for each rank below 3, received another one for rank 1; start all ranks with one command."
    ]
    assert len({fields.jobs["worker"] for fields in found if isinstance(fields, Fields)}) == 1


def test_ranks_that_disagree_on_their_number_are_refused(meet, run_id):
    found = meet(meeting(0, 2, run_id=run_id), meeting(1, 3, run_id=run_id), seconds=2.0)
    assert "expected 2 ranks, as rank 0 does, received a size of 3 from rank 1" in str(found[1])
    assert "rank 1 of 2 did not report" in str(found[0])


def test_rank_0_on_another_host_than_the_named_one_is_refused_at_once(meet, run_id):
    start = time.monotonic()
    (error,) = meet(meeting(0, 2, run_id=run_id, hosts=("203.0.113.1", "203.0.113.2")))
    assert time.monotonic() - start < 5.0
    assert "expected rank 0 on 203.0.113.1 or 203.0.113.2, which X names, but it runs on" in str(error)


def test_a_port_that_another_program_holds_is_refused(meet, run_id, free_ports):
    (port,) = free_ports(1)
    with socket.create_server(("", port)):
        (error,) = meet(meeting(0, 2, run_id=run_id, ports=(port,)))
    assert f"expected port {port} to be free for the exchange of addresses" in str(error)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"x" * 100_000,
        b"\n",
        b'{"rank": 1, "size": 2, "port": 5000, "nonce": "a", "proof": "b"}\n',
        b'{"rank": true, "size": 2, "port": 5000, "nonce": "a", "proof": "b"}\n',
        b"[" * 400 + b"\n",
        b"",
    ],
    ids=["http", "much", "empty line", "wrong proof", "wrong type", "deep", "silence"],
)
def test_strangers_do_not_disturb_the_exchange(sent, meet, run_id):
    ports = ports_of(run_id)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        task = threads.submit(meet, meeting(0, 2, run_id=run_id), meeting(1, 2, run_id=run_id), delays={1: 1.0})
        with connected(ports) as stranger:
            stranger.settimeout(5)
            assert document_of(stranger.recv(1000))["tfdist"] == "rendezvous"
            stranger.sendall(sent)
            found = task.result(timeout=60)
    assert len({fields.jobs["worker"] for fields in found}) == 1


def test_a_rank_that_was_started_again_takes_the_place_of_the_first_process(meet, run_id):
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        task = threads.submit(meet, *(meeting(rank, 3, run_id=run_id) for rank in range(3)), delays={1: 1.0, 2: 1.5})
        with connected(ports_of(run_id)) as first:
            nonce = document_of(first.recv(1000))["nonce"]
            first.sendall(Report(1, 3, 4711, "n", proof_of(run_id, nonce, 1, 3, 4711, "n")).to_line())
            time.sleep(0.2)
        found = task.result(timeout=60)
    (addresses,) = {fields.jobs["worker"] for fields in found}
    assert not addresses[1].endswith(":4711")


def connected(ports: tuple[int, ...]) -> socket.socket:
    """Returns a connection to rank 0, as soon as it listens."""
    for _ in range(200):
        for port in ports:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=5)
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError("expected rank 0 to listen")


def test_the_exchange_happens_once_in_a_process(monkeypatch):
    calls = []
    real = rendezvous._exchange

    def counted(*args):
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(rendezvous, "_exchange", counted)
    run_id = f"once {time.monotonic()}"
    ranks = [meeting(rank, 2, run_id=run_id) for rank in range(2)]
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        other = threads.submit(real, ranks[1], 30.0, lambda line: None)
        first = rendezvous.meet(ranks[0], timeout_seconds=30.0)
        assert other.result(timeout=60).fields.jobs == first.jobs
    assert rendezvous.meet(ranks[0], timeout_seconds=30.0) is first and len(calls) == 1


hosts = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::2"])


@given(st.lists(st.tuples(hosts, st.booleans(), st.integers(1, 65535)), min_size=1, max_size=8))
def test_every_address_is_reachable_from_every_host(ranks: list[tuple[str, bool, int]]) -> None:
    # Rank 0 is on 10.0.0.1. A rank on the same host may come over the loopback interface.
    seen = [
        Seen("127.0.0.1", "127.0.0.1", port)
        if host == "10.0.0.1" and loopback
        else Seen(host, "fd00::1" if host == "fd00::2" else "10.0.0.1", port)
        for host, loopback, port in ranks
    ]
    addresses = addresses_of(seen, port=4000)
    assert [split_address(address)[1] for address in addresses] == [4000, *(port for _, _, port in ranks)]
    found = [split_address(address)[0] for address in addresses]
    if any(host != "10.0.0.1" for host, _, _ in ranks):
        assert not any(host.startswith("127.") for host in found)
    for (host, _, _), address in zip(ranks, found[1:], strict=True):
        assert address == host or (host == "10.0.0.1" and address == found[0])
